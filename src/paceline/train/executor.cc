#include "paceline/train/executor.h"

#include "paceline/base/error.h"
#include "paceline/optim/gradient_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>

namespace paceline {
namespace {

constexpr int last_action_kind = static_cast<int>(ActionKind::checkpoint);
constexpr int last_operation_kind = static_cast<int>(OperationKind::all_reduce);

bool waits_for_others(ActionKind kind) {
  switch (kind) {
    case ActionKind::count_tokens:
    case ActionKind::receive_activation:
    case ActionKind::receive_gradient:
    case ActionKind::reduce_replicas:
    case ActionKind::wait_buckets:
    case ActionKind::gradient_norm:
      return true;
    default:
      return false;
  }
}

int activation_tag(int micro_batch) { return 2 * micro_batch; }
int gradient_tag(int micro_batch) { return 2 * micro_batch + 1; }

Schedule training_schedule(const ParallelOptions& options, const ModelConfig& model, std::int64_t bucket_bytes,
                           at::ScalarType type, PipelineSchedule kind, std::int64_t micro_batches) {
  const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(type));
  ScheduleOptions schedule{.kind = kind, .stages = options.layout.pp, .micro_batches = static_cast<int>(micro_batches)};
  for (int stage = 0; stage < options.layout.pp; ++stage) {
    const Program at_stage = build_rank_program(model, options, {.pp = stage});
    schedule.replicas_to_reduce.push_back(has_partial_gradients(at_stage));
    if (options.layout.dp > 1) {
      schedule.buckets.push_back(static_cast<int>(gradient_buckets(at_stage, bucket_bytes, element_bytes).buckets.size()));
    }
  }
  Schedule result = build_training_schedule(schedule);
  const ScheduleCheck checked = check(result);
  if (!checked.valid) fail("the training schedule cannot run: {}", checked.error);
  return result;
}

}  // namespace

struct Executor::StepState {
  StepRequest request;
  StepResult result;
  std::vector<MicroBatchData> data;
  std::vector<StageRunner::PassHandle> passes;
  std::vector<at::Tensor> received;              ///< by micro-batch: activation, then gradient
  std::vector<at::Tensor> outgoing;              ///< by micro-batch: what the next send hands over
  struct Send {
    std::unique_ptr<Work> work;
    at::Tensor tensor;
  };
  std::vector<Send> activation_sends;            ///< by micro-batch
  std::vector<Send> gradient_sends;
  struct Bucket {
    std::unique_ptr<Work> work;
    at::Tensor view;
    std::uint64_t start = 0;
    int action = -1;
  };
  std::vector<Bucket> buckets;
  std::int64_t local_targets = 0;
  double loss_scale = 0;
  double loss_sum = 0;
};

NameTable Executor::span_names() {
  NameTable names;
  for (int kind = 0; kind <= last_action_kind; ++kind) names.intern(action_kind_name(static_cast<ActionKind>(kind)));
  for (int kind = 0; kind <= last_operation_kind; ++kind) {
    names.intern(operation_kind_name(static_cast<OperationKind>(kind)));
  }
  for (const char* scalar : {"loss", "grad_norm", "tokens_per_s", "memory_bytes"}) names.intern(scalar);
  return names;
}

Executor::Executor(const Program& program, const ParallelOptions& options, ModelState& state, CommunicatorSet& communicators,
                   const BatchShape& batch, PipelineSchedule schedule, Recorder& recorder, MemoryAccount& account)
    : program_(program),
      layout_(options.layout),
      coordinate_(options.layout.coordinate(communicators.rank())),
      stage_(coordinate_.pp),
      state_(state),
      communicators_(communicators),
      batch_(batch),
      schedule_(training_schedule(options, program.model, state.bucket_bytes(), state.flat_weights.scalar_type(), schedule,
                                  batch.micro_batches)),
      recorder_(recorder),
      account_(account),
      runner_(program, state, options.layout.tp > 1 ? &communicators.tensor() : nullptr, batch.sequence_length, account) {
  NameTable names = span_names();
  for (int kind = 0; kind <= last_action_kind; ++kind) {
    action_names_.push_back(names.intern(action_kind_name(static_cast<ActionKind>(kind))));
  }
  for (int kind = 0; kind <= last_operation_kind; ++kind) {
    operation_names_.push_back(names.intern(operation_kind_name(static_cast<OperationKind>(kind))));
  }
  make_replica_groups();
}

Executor::~Executor() = default;

void Executor::make_replica_groups() {
  // The groups in ascending order of their members: every rank makes those that it shares with others in one order.
  std::map<std::vector<int>, std::vector<at::Tensor>> by_replicas;
  for (std::size_t i = 0; i < program_.parameters.size(); ++i) {
    const at::Tensor& gradient = state_.gradient(static_cast<int>(i));
    if (!gradient.defined()) continue;
    for (const Block& block : program_.parameters[i].blocks) {
      if (!block.trainable || !block.gradient_is_partial || block.replicas.size() < 2) continue;
      by_replicas[block.replicas].push_back(gradient.narrow(0, block.row, local_rows(block)));
    }
  }
  for (auto& [replicas, gradients] : by_replicas) {
    std::vector<int> ranks;
    for (const int at : replicas) ranks.push_back(layout_.rank({.dp = coordinate_.dp, .tp = at % layout_.tp, .pp = at / layout_.tp}));
    replica_groups_.push_back({communicators_.make_group(ranks, "replicas"), std::move(gradients)});
  }
}

at::Tensor Executor::boundary_tensor() const {
  const AccountScope scope(account_, MemoryClass::activations);
  return at::empty({batch_.micro_batch_size, batch_.sequence_length, program_.model.hidden_size},
                   at::TensorOptions().dtype(state_.flat_weights.scalar_type()));
}

MicroBatchData Executor::read_micro_batch(const SampleSource& source, const std::vector<std::int64_t>& samples) const {
  const AccountScope scope(account_, MemoryClass::activations);
  const std::int64_t length = batch_.sequence_length;
  const std::int64_t rows = batch_.micro_batch_size;
  MicroBatchData data{.tokens = at::zeros({rows, length}, at::kLong), .targets = at::zeros({rows, length}, at::kLong),
                      .mask = at::zeros({rows, length}, at::kByte)};
  std::vector<std::int64_t> tokens(length + 1);
  std::vector<std::int32_t> documents(length + 1);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (samples[row] < 0) continue;  // a row of padding: nothing in it counts
    source.read(static_cast<std::uint64_t>(samples[row]), tokens, documents,
                {data.mask.mutable_data_ptr<std::uint8_t>() + row * length, static_cast<std::size_t>(length)});
    std::copy_n(tokens.begin(), length, data.tokens.mutable_data_ptr<std::int64_t>() + row * length);
    std::copy_n(tokens.begin() + 1, length, data.targets.mutable_data_ptr<std::int64_t>() + row * length);
  }
  return data;
}

void Executor::load(StepState& state, const SampleSource& source) {
  for (std::int64_t m = 0; m < batch_.micro_batches; ++m) {
    std::vector<std::int64_t> samples;
    for (std::int64_t row = 0; row < batch_.micro_batch_size; ++row) {
      samples.push_back(static_cast<std::int64_t>(state.request.first_sample) +
                        (m * layout_.dp + coordinate_.dp) * batch_.micro_batch_size + row);
    }
    state.data.push_back(read_micro_batch(source, samples));
    const std::uint8_t* mask = state.data.back().mask.const_data_ptr<std::uint8_t>();
    for (std::int64_t i = 0; i < batch_.micro_batch_size * batch_.sequence_length; ++i) state.local_targets += mask[i] != 0;
  }
}

PassObserver Executor::observer(int action, std::function<void(int)> after) {
  PassObserver result;
  if (recorder_.enabled()) {
    result.before = [this](int) { operation_start_ = recorder_.lane(TraceLane::compute).ticks(); };
  }
  if (recorder_.enabled() || after) {
    result.after = [this, action, after = std::move(after)](int operation) {
      if (recorder_.enabled()) {
        RecorderLane& lane = recorder_.lane(TraceLane::compute);
        lane.span(operation_names_[static_cast<int>(program_.operations[operation].kind)], operation_start_, lane.ticks(),
                  lane.step(), static_cast<std::uint32_t>(action), operation);
      }
      if (after) after(operation);
    };
  }
  return result;
}

StepResult Executor::step(const StepRequest& request, const SampleSource& source) {
  StepState state;
  state.request = request;
  const auto micro_batches = static_cast<std::size_t>(batch_.micro_batches);
  state.passes.resize(micro_batches);
  state.received.resize(micro_batches);
  state.outgoing.resize(micro_batches);
  state.activation_sends.resize(micro_batches);
  state.gradient_sends.resize(micro_batches);
  state.buckets.resize(layout_.dp > 1 ? state_.buckets().buckets.size() : 0);
  runner_.begin_step();
  recorder_.begin_step(static_cast<std::uint32_t>(request.step));
  const Span whole(recorder_, step_name);
  for (int index = 0; index < static_cast<int>(actions().size()); ++index) {
    const Action& action = actions()[index];
    const bool waits = waits_for_others(action.kind);
    if (progress_) progress_(action, waits);
    const auto start = std::chrono::steady_clock::now();
    {
      const Span span(recorder_, action_names_[static_cast<int>(action.kind)], static_cast<std::uint32_t>(index));
      run_action(state, index, source);
    }
    if (waits) {
      state.result.communication_wait_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }
  for (auto* sends : {&state.activation_sends, &state.gradient_sends}) {
    for (StepState::Send& send : *sends) {
      if (send.work) send.work->wait();
    }
  }
  return state.result;
}

void Executor::run_action(StepState& state, int index, const SampleSource& source) {
  const Action& action = actions()[index];
  const int m = action.micro_batch;
  switch (action.kind) {
    case ActionKind::load:
      load(state, source);
      break;
    case ActionKind::count_tokens: {
      at::Tensor count = at::zeros({1}, at::kLong);
      count.mutable_data_ptr<std::int64_t>()[0] = state.local_targets;
      if (layout_.dp > 1) communicators_.data().all_reduce(count, ReduceOp::sum);
      state.result.valid_targets = count.const_data_ptr<std::int64_t>()[0];
      state.loss_scale = state.result.valid_targets > 0 ? 1.0 / static_cast<double>(state.result.valid_targets) : 0.0;
      break;
    }
    case ActionKind::receive_activation:
      state.received[m] = boundary_tensor();
      communicators_.pipeline().receive(state.received[m], action.peer, activation_tag(m));
      break;
    case ActionKind::receive_gradient:
      state.received[m] = boundary_tensor();
      communicators_.pipeline().receive(state.received[m], action.peer, gradient_tag(m));
      // Its gradient proves that the activation has arrived.
      if (StepState::Send& sent = state.activation_sends[m]; sent.work) {
        sent.work->wait();
        sent = {};
      }
      break;
    case ActionKind::send_activation:
    case ActionKind::send_gradient: {
      const bool forwards = action.kind == ActionKind::send_activation;
      at::Tensor tensor = std::move(state.outgoing[m]);
      auto work = communicators_.pipeline().send_start(tensor, action.peer, forwards ? activation_tag(m) : gradient_tag(m));
      (forwards ? state.activation_sends : state.gradient_sends)[m] = {std::move(work), std::move(tensor)};
      break;
    }
    case ActionKind::forward:
      state.passes[m] = runner_.forward(state.data[m], std::exchange(state.received[m], {}), state.loss_scale,
                                        observer(index, {}));
      state.outgoing[m] = StageRunner::take_output(*state.passes[m]);
      state.loss_sum += StageRunner::loss_sum(*state.passes[m]);
      break;
    case ActionKind::backward: {
      std::function<void(int)> after;
      if (layout_.dp > 1 && m == batch_.micro_batches - 1) {
        // This was the last contribution: a bucket is on its way while the operations before it still run backward.
        after = [this, &state](int operation) {
          for (std::size_t bucket = 0; bucket < state.buckets.size(); ++bucket) {
            if (state_.buckets().completed_by[bucket] == operation) start_bucket(state, static_cast<int>(bucket));
          }
        };
      }
      state.outgoing[m] = runner_.backward(std::move(state.passes[m]), std::exchange(state.received[m], {}),
                                           observer(index, std::move(after)));
      break;
    }
    case ActionKind::backward_input:
      state.outgoing[m] = runner_.backward_input(*state.passes[m], std::exchange(state.received[m], {}), observer(index, {}));
      break;
    case ActionKind::backward_weight:
      runner_.backward_weight(std::move(state.passes[m]), observer(index, {}));
      break;
    case ActionKind::reduce_replicas:
      for (ReplicaGroup& replicas : replica_groups_) {
        for (at::Tensor& gradient : replicas.gradients) replicas.group->all_reduce(gradient, ReduceOp::sum);
      }
      break;
    case ActionKind::reduce_bucket:
      state.buckets[action.bucket].action = index;
      start_bucket(state, action.bucket);
      break;
    case ActionKind::wait_buckets:
      for (StepState::Bucket& bucket : state.buckets) {
        bucket.work->wait();
        RecorderLane& lane = recorder_.lane(TraceLane::communication);
        if (recorder_.enabled()) {
          lane.span(action_names_[static_cast<int>(ActionKind::reduce_bucket)], bucket.start, lane.ticks(), lane.step(),
                    static_cast<std::uint32_t>(bucket.action));
        }
      }
      break;
    case ActionKind::gradient_norm:
      gradient_norm(state);
      break;
    case ActionKind::optimizer_step:
      optimizer_step(state);
      break;
    case ActionKind::evaluate:
    case ActionKind::checkpoint:
      throw_broken_invariant(__FILE__, __LINE__, "an action of the run inside a step's schedule");
  }
}

void Executor::start_bucket(StepState& state, int index) {
  StepState::Bucket& bucket = state.buckets[index];
  if (bucket.work) return;
  const auto [begin, end] = state_.buckets().buckets[index];
  bucket.view = state_.flat_gradients.narrow(0, begin, end - begin);
  bucket.start = recorder_.enabled() ? recorder_.lane(TraceLane::communication).ticks() : 0;
  bucket.work = communicators_.data().all_reduce_start(bucket.view, ReduceOp::sum);
}

void Executor::gradient_norm(StepState& state) {
  runner_.finish_gradients();
  double squares = 0;
  if (coordinate_.dp == 0) {  // replicas hold the same gradient: one counts it
    for (const Segment& segment : state_.segments()) {
      if (segment.counted) squares += sum_of_squares(state_.flat_gradients.narrow(0, segment.begin, segment.end - segment.begin));
    }
  }
  const bool has_loss = program_.loss >= 0 && coordinate_.tp == 0;
  at::Tensor sums = at::zeros({3}, at::kDouble);
  double* values = sums.mutable_data_ptr<double>();
  values[0] = squares;
  values[1] = has_loss ? state.loss_sum : 0.0;
  values[2] = state.request.wants_stop ? 1.0 : 0.0;
  if (layout_.world_size() > 1) communicators_.world().all_reduce(sums, ReduceOp::sum);
  state.result.gradient_norm = std::sqrt(values[0]);
  state.result.loss = state.result.valid_targets > 0 ? values[1] / static_cast<double>(state.result.valid_targets)
                                                     : std::numeric_limits<double>::quiet_NaN();
  state.result.stop = values[2] > 0;
}

void Executor::optimizer_step(StepState& state) {
  if (state.result.valid_targets == 0) return;  // nothing to learn from: weights and moments stay
  const std::optional<double> multiplier = clip_coefficient(state.result.gradient_norm, state.request.max_gradient_norm);
  if (!multiplier) return;
  // One call for each run of segments with one treatment.
  const std::vector<Segment>& segments = state_.segments();
  for (std::size_t i = 0; i < segments.size();) {
    std::size_t last = i;
    while (last + 1 < segments.size() && segments[last + 1].decays == segments[i].decays &&
           (segments[last + 1].begin == segments[last].end ||
            (segments[last].ends_parameter && segments[last + 1].begins_parameter))) {
      ++last;  // between parameters lies alignment only: zeros that stay zero
    }
    const std::int64_t begin = segments[i].begin, length = segments[last].end - begin;
    AdamWSettings settings = state.request.optimizer;
    if (!segments[i].decays) settings.weight_decay = 0;
    adamw_step(state_.flat_weights.narrow(0, begin, length), state_.flat_gradients.narrow(0, begin, length),
               state_.first_moments.narrow(0, begin, length), state_.second_moments.narrow(0, begin, length),
               state.request.optimizer_count, settings, *multiplier);
    i = last + 1;
  }
  state.result.updated = true;
}

std::string Executor::bad_gradient() const {
  for (const Segment& segment : state_.segments()) {
    const at::Tensor values = state_.flat_gradients.narrow(0, segment.begin, segment.end - segment.begin);
    if (!std::isfinite(sum_of_squares(values))) return program_.parameters[segment.parameter].blocks.front().tensor;
  }
  return {};
}

Executor::EvaluationResult Executor::evaluate(const SampleSource& source, std::int64_t samples, std::int64_t step) {
  const std::int64_t per_pass = batch_.micro_batch_size * layout_.dp;
  const std::int64_t passes = (samples + per_pass - 1) / per_pass;
  recorder_.begin_step(static_cast<std::uint32_t>(step));
  const Span span(recorder_, action_names_[static_cast<int>(ActionKind::evaluate)]);
  const Action progress{.kind = ActionKind::evaluate};
  EvaluationResult result;
  std::vector<StepState::Send> sends;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    if (progress_) progress_(progress, stage_ > 0);
    std::vector<std::int64_t> numbers;
    for (std::int64_t row = 0; row < batch_.micro_batch_size; ++row) {
      const std::int64_t sample = (pass * layout_.dp + coordinate_.dp) * batch_.micro_batch_size + row;
      numbers.push_back(sample < samples ? sample : -1);
    }
    const MicroBatchData data = read_micro_batch(source, numbers);
    at::Tensor input;
    const int tag = activation_tag(static_cast<int>(pass % 1024));
    if (program_.input >= 0) {
      input = boundary_tensor();
      communicators_.pipeline().receive(input, stage_ - 1, tag);
    }
    StageRunner::Evaluation evaluation = runner_.evaluate(data, input, false, {});
    if (program_.output >= 0) {
      auto work = communicators_.pipeline().send_start(evaluation.output, stage_ + 1, tag);
      if (!sends.empty()) sends.back().work->wait();
      sends.clear();
      sends.push_back({std::move(work), evaluation.output});
    }
    result.loss_sum += evaluation.loss_sum;
    if (program_.loss >= 0) {
      const std::uint8_t* mask = data.mask.const_data_ptr<std::uint8_t>();
      for (std::int64_t i = 0; i < data.mask.numel(); ++i) result.valid_targets += mask[i] != 0;
    }
  }
  for (StepState::Send& send : sends) send.work->wait();
  at::Tensor sums = at::zeros({2}, at::kDouble);
  double* values = sums.mutable_data_ptr<double>();
  if (program_.loss >= 0 && coordinate_.tp == 0) {
    values[0] = result.loss_sum;
    values[1] = static_cast<double>(result.valid_targets);
  }
  if (layout_.world_size() > 1) communicators_.world().all_reduce(sums, ReduceOp::sum);
  result.loss_sum = values[0];
  result.valid_targets = static_cast<std::int64_t>(values[1]);
  return result;
}

}  // namespace paceline
