#pragma once

#include "paceline/engine/requests.h"

namespace paceline {

/// What the engine library (everything that needs torch) offers the program, which opens it when a command needs it.
/// Each call returns the command's exit code; errors are thrown.
struct EngineInterface {
  int (*train)(const TrainRequest&);
  int (*evaluate)(const EvaluateRequest&);
  int (*generate)(const GenerateRequest&);
  int (*convert)(const ConvertRequest&);
  int (*bench_machine)(const BenchMachineRequest&);
  int (*bench_train)(const BenchTrainRequest&);
};

}  // namespace paceline

extern "C" __attribute__((visibility("default"))) const paceline::EngineInterface* paceline_engine();
