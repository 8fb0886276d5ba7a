#include "paceline/checkpoint/convert.h"
#include "paceline/engine/interface.h"
#include "paceline/infer/evaluate.h"
#include "paceline/infer/generate.h"
#include "paceline/train/bench_machine.h"
#include "paceline/train/bench_train.h"
#include "paceline/train/train_rank.h"

const paceline::EngineInterface* paceline_engine() {
  static constexpr paceline::EngineInterface interface = {
      .train = paceline::train_rank,
      .evaluate = paceline::run_evaluate,
      .generate = paceline::run_generate,
      .convert = paceline::run_convert,
      .bench_machine = paceline::run_bench_machine,
      .bench_train = paceline::run_bench_train,
  };
  return &interface;
}
