# The torch wheel of the project's venv as two interface targets:
#   paceline_torch           tensors and per-operator headers; ATen/ATen.h and torch/torch.h are compile errors
#   paceline_torch_autograd  the same without the guard's macros removed: test oracles include single ops as well
set(PACELINE_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "the interpreter that has torch installed")
execute_process(
  COMMAND ${PACELINE_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE PACELINE_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE found)
if(NOT found EQUAL 0 OR NOT EXISTS "${PACELINE_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "${PACELINE_PYTHON} has no torch: './run build' installs it")
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)

add_library(paceline_torch INTERFACE)
target_include_directories(paceline_torch SYSTEM INTERFACE
  ${PACELINE_TORCH_DIR}/include ${PACELINE_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(paceline_torch INTERFACE
  FMT_HEADER_ONLY AT_PER_OPERATOR_HEADERS AT_PARALLEL_OPENMP=1)
target_compile_options(paceline_torch INTERFACE -fopenmp)
target_link_directories(paceline_torch INTERFACE ${PACELINE_TORCH_DIR}/lib)
target_link_libraries(paceline_torch INTERFACE torch_cpu c10 ${PACELINE_TORCH_DIR}/lib/libgomp.so.1)
target_link_options(paceline_torch INTERFACE "-Wl,-rpath,${PACELINE_TORCH_DIR}/lib")

add_library(paceline_torch_autograd INTERFACE)
target_link_libraries(paceline_torch_autograd INTERFACE paceline_torch)
