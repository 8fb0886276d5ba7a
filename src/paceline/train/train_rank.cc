#include "paceline/train/train_rank.h"

#include "paceline/base/error.h"
#include "paceline/base/progress.h"
#include "paceline/base/version.h"
#include "paceline/checkpoint/checkpoint.h"
#include "paceline/checkpoint/durable_file.h"
#include "paceline/checkpoint/huggingface_model.h"
#include "paceline/cluster/profile.h"
#include "paceline/comm/communicator_set.h"
#include "paceline/data/token_loader.h"
#include "paceline/plan/plan.h"
#include "paceline/plan/plan_document.h"
#include "paceline/supervision/peer_supervision.h"
#include "paceline/supervision/run_id.h"
#include "paceline/supervision/run_lock.h"
#include "paceline/supervision/stop_request.h"
#include "paceline/supervision/usable_cores.h"
#include "paceline/trace/recorder.h"
#include "paceline/train/executor.h"
#include "paceline/train/initial_weights.h"
#include "paceline/train/metrics_log.h"
#include "paceline/train/product_peak.h"
#include "paceline/train/rendezvous.h"
#include "paceline/train/shard_source.h"
#include "paceline/train/training_state.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int local_threads(const RunSettings& settings, int local_ranks, std::string* reason) {
  if (settings.train.threads_per_rank > 0) {
    *reason = "train.threads_per_rank";
    return static_cast<int>(settings.train.threads_per_rank);
  }
  const ThreadChoice choice = threads_per_rank(usable_cores(), local_ranks);
  *reason = choice.reason;
  return choice.threads;
}

Place planning_place(int local_ranks, int threads) {
  Place place;
  place.cores = usable_cores();
  place.profile = find_machine_profile(place.cores);
  place.threads_per_rank = threads;
  place.backend = "shared_memory";
  return place;
}

std::string millions(std::int64_t count) { return fmt::format("{:.2f} M", static_cast<double>(count) / 1e6); }

std::string banner(const PreparedRun& run, const Plan& plan, const std::string& threads_reason, const std::string& origin) {
  const ModelConfig& model = run.model;
  const BatchPlan& batch = run.step.batch;
  const std::int64_t parameters = parameter_count(build_program(model));
  std::string text = fmt::format("paceline {}  run {}\n", program_version, run.settings.run.folder);
  text += fmt::format("  model      {}: {} parameters{}, {} layers, hidden {}, {} heads ({} key/value), ffn {}, vocabulary {}\n",
                      family_name(model.family), millions(parameters), model.tie_word_embeddings ? " (tied head)" : "",
                      model.num_hidden_layers, model.hidden_size, model.num_attention_heads, model.num_key_value_heads,
                      model.intermediate_size, model.vocab_size);
  text += fmt::format("  layout     {} on {} ({} thread{} a rank: {}), {} schedule\n", run.layout().text(), origin, plan.threads_per_rank,
                      plan.threads_per_rank == 1 ? "" : "s", threads_reason, pipeline_schedule_name(run.step.schedule));
  text += fmt::format("  batch      {} sequences = micro-batch {} x {} accumulated x dp {}; {} tokens a step\n", batch.global,
                      batch.micro, batch.accumulation, batch.dp, run.tokens_per_step());
  text += fmt::format("  training   {} steps, {:.2f} M tokens, {}, AdamW (decay on matrices and embeddings, none on norms and biases)\n",
                      run.settings.train.steps, static_cast<double>(run.settings.train.steps * run.tokens_per_step()) / 1e6,
                      run.settings.train.precision);
  text += fmt::format("  predicted  {:.1f} ms a step, {:.0f} tokens/s, {} in all, {:.1f} MB tensors in the largest rank{}\n",
                      plan.step_time_s() * 1e3, plan.tokens_per_s(),
                      duration_text(plan.step_time_s() * static_cast<double>(run.settings.train.steps)),
                      plan.largest_memory().total() / 1e6, plan.place.profile.measured ? "" : " (machine not measured: `paceline bench machine`)");
  return text;
}

/// What rank 0 decides for all.
struct SharedIdentity {
  std::string run_id;
  TraceContext trace;
};

SharedIdentity share_identity(Communicator& world, const PreparedRun& run) {
  SharedIdentity identity;
  std::vector<TraceLink> inputs;
  const auto data_trace = TraceId::parse(run.manifest.producer.trace_id);
  const auto data_span = SpanId::parse(run.manifest.producer.span_id);
  if (data_trace && data_span) inputs.push_back({*data_trace, *data_span, "data version " + run.manifest.data_version});
  identity.trace = trace_context_from_environment(process_environment, inputs);
  identity.run_id = environment_variable("PACELINE_RUN_ID").value_or(random_run_id());
  if (world.size() == 1) return identity;
  const nlohmann::json own = {{"run_id", identity.run_id}, {"traceparent", format_traceparent(identity.trace.for_child())}};
  const nlohmann::json shared = nlohmann::json::parse(world.broadcast_bytes(own.dump(), 0));
  identity.run_id = shared.at("run_id");
  const auto parent = parse_traceparent(shared.at("traceparent").get<std::string>());
  PACELINE_CHECK(parent.has_value());
  identity.trace.trace_id = parent->trace_id;
  identity.trace.span_id = parent->span_id;
  return identity;
}

TraceHeader trace_header(const PreparedRun& run, const SharedIdentity& identity, const Program& program, int rank) {
  TraceHeader header;
  header.program_version = program_version;
  header.run_id = identity.run_id;
  header.trace_id = identity.trace.trace_id;
  header.root_span_id = identity.trace.span_id;
  header.links = identity.trace.links;
  header.rank = rank;
  header.world_size = run.layout().world_size();
  const Coordinate at = run.layout().coordinate(rank);
  header.coordinate = {{"dp", at.dp}, {"tp", at.tp}, {"pp", at.pp}};
  header.names = Executor::span_names().names();
  const TrainingStep step = build_training_step(run.step);
  for (const Action& action : step.schedule.ranks[at.pp]) header.actions.push_back(action_label(action));
  for (const Operation& operation : program.operations) header.operations.push_back(operation.name);
  return header;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path beside = path.string() + ".tmp";
  std::ofstream file(beside, std::ios::trunc);
  file << text;
  file.close();
  if (!file) fail("{}: cannot be written; is the disk full?", beside.string());
  std::filesystem::rename(beside, path);
}

/// The training of one rank from its first collective to its last.
class RankTraining {
 public:
  RankTraining(const TrainRequest& request, PreparedRun run, int local_rank, std::shared_ptr<Transport> transport,
               StopRequest& stop, Activity& activity)
      : request_(request),
        run_(std::move(run)),
        local_rank_(local_rank),
        stop_(stop),
        activity_(activity),
        communicators_(std::move(transport), run_.layout()),
        rank_(communicators_.rank()),
        at_(run_.layout().coordinate(rank_)),
        identity_(share_identity(communicators_.world(), run_)),
        program_(build_rank_program(run_.model, run_.step.parallel, at_)),
        precision_(parse_precision(run_.settings.train.precision)),
        state_(program_, at_.pp * run_.layout().tp + at_.tp, precision_, run_.step.bucket_bytes, true, account_),
        folder_(run_.settings.run.folder),
        train_(run_.train_prefix.string(), run_.settings.train.sequence_length, run_.settings.train.seed, true,
               run_.model.vocab_size) {
    if (!run_.held_out_prefix.empty()) {
      held_out_.emplace(run_.held_out_prefix.string(), run_.settings.train.sequence_length, run_.settings.train.seed, false,
                        run_.model.vocab_size);
    }
    if (run_.settings.trace.enabled && !is_finished()) {  // a finished run keeps the trace of its steps
      recorder_.emplace(folder_ / "trace" / trace_file_name(rank_), trace_header(run_, identity_, program_, rank_));
    } else {
      recorder_.emplace();
    }
    executor_.emplace(program_, run_.step.parallel, state_, communicators_,
                      BatchShape{.micro_batch_size = run_.step.batch.micro, .micro_batches = run_.step.batch.accumulation,
                                 .sequence_length = run_.settings.train.sequence_length},
                      run_.step.schedule, *recorder_, account_);
    executor_->set_progress([this](const Action& action, bool waits) {
      waiting_.reset();
      activity_.begin(action_text(action.kind), training_.step + 1, action.micro_batch);
      if (waits) waiting_.emplace(activity_, Activity::any_rank);
    });
  }

  int run(const Plan& plan, const std::string& text_banner) {
    activity_.begin("start");
    if (rank_ == 0) {
      remove_unfinished_saves(folder_);
      write_text(folder_ / "settings.toml", to_toml(run_.settings));
      // With its tokenizer a run's folder is whole: `convert` and `generate` need nothing else.
      const std::filesystem::path tokenizer = std::filesystem::path(run_.settings.data.folder) / run_.manifest.tokenizer_file;
      if (std::filesystem::is_regular_file(tokenizer)) {
        write_durably(folder_ / "tokenizer.json", read_text(tokenizer));
      }
      nlohmann::ordered_json document = plan_document(plan);
      document["traceparent"] = format_traceparent(identity_.trace.for_child());
      document["run_id"] = identity_.run_id;
      write_text(folder_ / "plan.json", document.dump(1) + "\n");
      std::fputs(text_banner.c_str(), stderr);
    }
    communicators_.world().barrier();
    resume();
    measure_peak();
    if (rank_ == 0) metrics_.emplace(folder_ / "metrics.jsonl", training_.step);
    if (training_.step >= run_.settings.train.steps) {
      if (rank_ == 0) progress_line(fmt::format("the run is finished: {} steps; raise train.steps to go on", training_.step));
      return summary(0);
    }
    if (rank_ == 0) progress_.emplace("step", "steps", run_.settings.train.steps, training_.step);
    bool stopped = false;
    while (training_.step < run_.settings.train.steps && !stopped) stopped = one_step();
    waiting_.reset();
    if (progress_) progress_->finish();
    const bool finished = training_.step >= run_.settings.train.steps;
    if (rank_ == 0 && !finished) {
      progress_line(fmt::format("stopped after step {} of {}: {}; saved, the same command goes on from here", training_.step,
                                run_.settings.train.steps, stop_.requested() ? stop_.reason() : "another rank asked"));
    }
    return summary(finished ? 0 : stop_exit_code(stop_.requested() ? stop_.cause() : StopCause::terminate));
  }

 private:
  bool is_finished() const {
    const auto latest = latest_checkpoint(folder_);
    return latest && Checkpoint(*latest).manifest().step >= run_.settings.train.steps;
  }

  static const char* action_text(ActionKind kind) {
    switch (kind) {
      case ActionKind::load: return "load";
      case ActionKind::forward: return "forward";
      case ActionKind::backward: return "backward";
      case ActionKind::optimizer_step: return "optimizer step";
      case ActionKind::evaluate: return "evaluate";
      case ActionKind::checkpoint: return "checkpoint";
      default: return "communication";
    }
  }

  void progress_line(const std::string& text) {
    if (progress_) {
      progress_->line(text);
    } else {
      std::fprintf(stderr, "%s\n", text.c_str());
    }
  }

  std::vector<StoredParameter> stored_parameters() const {
    std::vector<StoredParameter> stored;
    for (std::size_t i = 0; i < program_.parameters.size(); ++i) {
      const int index = static_cast<int>(i);
      StoredParameter parameter{.parameter = &program_.parameters[i], .states = {{"weights", state_.weight(index)}}};
      if (state_.is_flat(index)) {
        parameter.states["exp_avg"] = state_.view_of(state_.first_moments, index);
        parameter.states["exp_avg_sq"] = state_.view_of(state_.second_moments, index);
      }
      stored.push_back(std::move(parameter));
    }
    return stored;
  }

  void resume() {
    activity_.begin("resume");
    const std::optional<std::filesystem::path> latest = latest_checkpoint(folder_);
    if (!latest) {
      load_initial_weights(run_, program_, state_);
      return;
    }
    const Checkpoint checkpoint(*latest);
    checkpoint.require_model(run_.model);
    std::vector<StoredParameter> parameters = stored_parameters();
    const bool is_foreign = checkpoint.manifest().training_state.is_null();
    for (StoredParameter& parameter : parameters) {
      if (is_foreign) parameter.states = {{"weights", parameter.states.at("weights")}};
    }
    checkpoint.load(parameters, {.convert_types = is_foreign});
    std::vector<std::string> notices;
    training_ = read_training_state(checkpoint.manifest().training_state, run_, latest->string(), notices);
    if (rank_ == 0) {
      progress_line(fmt::format("resumed from {} (step {}, written by {})", latest->string(), training_.step,
                                checkpoint.manifest().layout.text()));
      for (const std::string& notice : notices) progress_line(notice);
    }
  }

  void measure_peak() {
    activity_.begin("measure products");
    peak_flops_ = measure_product_peak_of_ranks(communicators_.world(), local_rank_, precision_.parameters);
  }

  /// One step with what follows it. Returns whether to stop.
  bool one_step() {
    const Clock::time_point start = Clock::now();
    const std::int64_t step = training_.step + 1;
    StepRequest request{.step = step, .first_sample = static_cast<std::uint64_t>(training_.consumed_samples),
                        .max_gradient_norm = run_.settings.optimizer.max_gradient_norm,
                        .optimizer_count = training_.optimizer_count + 1, .wants_stop = stop_.requested()};
    request.optimizer = {.learning_rate = learning_rate_at(step, run_.learning_rate), .beta1 = run_.settings.optimizer.beta1,
                         .beta2 = run_.settings.optimizer.beta2, .epsilon = run_.settings.optimizer.epsilon,
                         .weight_decay = run_.settings.optimizer.weight_decay};
    const StepResult result = executor_->step(request, train_);
    const double step_time = seconds_since(start);
    waiting_.reset();
    training_.step = step;
    training_.consumed_samples += run_.step.batch.global;
    training_.consumed_tokens += run_.tokens_per_step();
    if (result.updated) ++training_.optimizer_count;
    note_bad_step(result);

    const bool last = step == run_.settings.train.steps;
    const bool stop = result.stop && !last;
    const std::int64_t evaluate_every = run_.settings.evaluate.every_steps;
    std::optional<double> held_out_loss;
    if (held_out_ && ((evaluate_every > 0 && step % evaluate_every == 0) || last)) held_out_loss = evaluate_held_out(step);
    const double memory = largest_memory();
    if (rank_ == 0) report(step, step_time, request.optimizer.learning_rate, result, held_out_loss, memory);
    const std::int64_t save_every = run_.settings.checkpoint.every_steps;
    if (last || stop || (save_every > 0 && step % save_every == 0)) save(step);
    recorder_->flush();
    return stop;
  }

  void note_bad_step(const StepResult& result) {
    if (result.updated) {
      bad_in_a_row_ = 0;
      return;
    }
    if (result.valid_targets == 0) {
      ++training_.empty_steps;
      return;
    }
    ++training_.skipped_steps;
    ++bad_in_a_row_;
    const std::string tensor = executor_->bad_gradient();
    const std::string text = fmt::format("step {}: the gradient{} is not finite on rank {}; the step is skipped on all ranks ({} so far)",
                                         training_.step, tensor.empty() ? "" : " of " + tensor, rank_, training_.skipped_steps);
    if (!tensor.empty()) progress_line(text);
    constexpr int most_in_a_row = 20;
    if (bad_in_a_row_ >= most_in_a_row) {
      fail("{} steps in a row had a gradient that is not finite, the last at step {}: the run cannot go on; the last good checkpoint "
           "is kept. Lower optimizer.learning_rate, or look at the data of these steps",
           most_in_a_row, training_.step);
    }
  }

  double evaluate_held_out(std::int64_t step) {
    const std::int64_t all = held_out_->loader().samples_per_epoch();
    const std::int64_t asked = run_.settings.evaluate.samples;
    return executor_->evaluate(*held_out_, asked > 0 ? std::min(asked, all) : all, step).loss();
  }

  double largest_memory() {
    at::Tensor bytes = at::zeros({1}, at::kDouble);
    bytes.mutable_data_ptr<double>()[0] = static_cast<double>(account_.use().peak_total);
    if (communicators_.world().size() > 1) communicators_.world().all_reduce(bytes, ReduceOp::max);
    return bytes.const_data_ptr<double>()[0];
  }

  void report(std::int64_t step, double step_time, double rate, const StepResult& result, std::optional<double> held_out_loss,
              double memory) {
    const double tokens_per_s = static_cast<double>(run_.tokens_per_step()) / step_time;
    const double flops = tokens_per_s * model_flops_per_token(run_.model, run_.settings.train.sequence_length);
    const auto number = [](double value) { return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(); };
    nlohmann::ordered_json metrics = {{"step", step},
                                      {"wall_time", unix_time()},
                                      {"loss", number(result.loss)},
                                      {"grad_norm", number(result.gradient_norm)},
                                      {"learning_rate", rate},
                                      {"step_time_s", step_time},
                                      {"tokens_per_s", tokens_per_s},
                                      {"tokens_per_s_per_rank", tokens_per_s / run_.layout().world_size()},
                                      {"model_flops_per_token", model_flops_per_token(run_.model, run_.settings.train.sequence_length)},
                                      {"model_tflops", flops / 1e12},
                                      {"gemm_peak_tflops", peak_flops_ / 1e12},
                                      {"mfu", flops / peak_flops_},
                                      {"memory_bytes", static_cast<std::int64_t>(memory)},
                                      {"valid_targets", result.valid_targets},
                                      {"consumed_samples", training_.consumed_samples},
                                      {"consumed_tokens", training_.consumed_tokens},
                                      {"skipped_steps", training_.skipped_steps},
                                      {"empty_steps", training_.empty_steps},
                                      {"communication_wait_s", result.communication_wait_s}};
    if (held_out_loss) metrics["eval_loss"] = number(*held_out_loss);
    metrics_->append(metrics);
    NameTable names = Executor::span_names();
    RecorderLane& lane = recorder_->lane(TraceLane::host);
    lane.scalar(names.intern("loss"), result.loss);
    lane.scalar(names.intern("grad_norm"), result.gradient_norm);
    lane.scalar(names.intern("tokens_per_s"), tokens_per_s);
    lane.scalar(names.intern("memory_bytes"), memory);
    const std::string loss = result.valid_targets > 0 ? fmt::format("loss {:.4f}", result.loss) : std::string("no targets");
    progress_->update(step, fmt::format("{}  norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  {:.4f} TFLOP/s  mfu {:.1f} %", loss,
                                        result.gradient_norm, rate, tokens_per_s, flops / 1e12, 100 * flops / peak_flops_));
    if (held_out_loss) {
      progress_->line(fmt::format("step {}: held-out loss {:.4f}", step, *held_out_loss));
      last_held_out_loss_ = held_out_loss;
    }
    last_loss_ = result.loss;
  }

  void save(std::int64_t step) {
    activity_.begin("checkpoint", step);
    recorder_->begin_step(static_cast<std::uint32_t>(step));
    NameTable names = Executor::span_names();
    const Span span(*recorder_, names.intern(action_kind_name(ActionKind::checkpoint)));
    Communicator& world = communicators_.world();
    SaveRequest request{.run_folder = folder_, .step = step, .run_id = identity_.run_id, .program_version = program_version,
                        .model = run_.model, .layout = run_.layout(), .rank = rank_,
                        .training_state = training_state_json(training_, run_),
                        .keep_last = static_cast<int>(run_.settings.checkpoint.keep_last),
                        .collectives = {.all_gather_text = [&](const std::string& text) {
                                          const Activity::Waiting waiting(activity_, Activity::any_rank);
                                          return world.all_gather_bytes(text);
                                        },
                                        .barrier = [&] {
                                          const Activity::Waiting waiting(activity_, Activity::any_rank);
                                          world.barrier();
                                        }}};
    request.training_state["trace"] = format_traceparent(identity_.trace.for_child());
    const std::filesystem::path folder = save_checkpoint(request, stored_parameters());
    if (rank_ == 0) progress_line(fmt::format("step {}: saved {}", step, folder.string()));
  }

  int summary(int code) {
    recorder_->flush();
    communicators_.world().barrier();
    if (rank_ != 0) return code;
    const bool evaluates_all = held_out_ && (run_.settings.evaluate.samples == 0 ||
                                             run_.settings.evaluate.samples >= held_out_->loader().samples_per_epoch());
    if (last_held_out_loss_ && run_.manifest.bigram_held_out_loss && evaluates_all) {
      progress_line(fmt::format("held-out loss {:.4f} nats a token; an interpolated Kneser-Ney bigram of the same tokens: {:.4f}",
                                *last_held_out_loss_, *run_.manifest.bigram_held_out_loss));
    }
    if (request_.json) {
      nlohmann::ordered_json document = {{"schema_version", 1}, {"run", folder_.string()}, {"run_id", identity_.run_id},
                                         {"step", training_.step}, {"finished", code == 0}};
      document["loss"] = std::isfinite(last_loss_) ? nlohmann::ordered_json(last_loss_) : nlohmann::ordered_json();
      document["eval_loss"] = last_held_out_loss_ ? nlohmann::ordered_json(*last_held_out_loss_) : nlohmann::ordered_json();
      document["bigram_eval_loss"] =
          run_.manifest.bigram_held_out_loss ? nlohmann::ordered_json(*run_.manifest.bigram_held_out_loss) : nlohmann::ordered_json();
      std::printf("%s\n", document.dump(2).c_str());
    }
    return code;
  }

  const TrainRequest& request_;
  PreparedRun run_;
  int local_rank_;
  StopRequest& stop_;
  Activity& activity_;
  MemoryAccount account_;
  CommunicatorSet communicators_;
  int rank_;
  Coordinate at_;
  SharedIdentity identity_;
  Program program_;
  Precision precision_;
  ModelState state_;
  std::filesystem::path folder_;
  ShardSource train_;
  std::optional<ShardSource> held_out_;
  std::optional<Recorder> recorder_;
  std::optional<Executor> executor_;
  std::optional<Activity::Waiting> waiting_;
  std::optional<MetricsLog> metrics_;
  std::optional<Progress> progress_;
  TrainingState training_;
  double peak_flops_ = 1;
  int bad_in_a_row_ = 0;
  double last_loss_ = std::nan("");
  std::optional<double> last_held_out_loss_;
};

/// Refuses settings that the run's latest checkpoint does not go with. What a resume would start from, in lines.
std::vector<std::string> check_resume(const PreparedRun& run) {
  const std::optional<std::filesystem::path> latest = latest_checkpoint(run.settings.run.folder);
  if (!latest) return {};
  const Checkpoint checkpoint(*latest);
  checkpoint.require_model(run.model);
  std::vector<std::string> lines;
  const TrainingState state = read_training_state(checkpoint.manifest().training_state, run, latest->string(), lines);
  lines.insert(lines.begin(), fmt::format("resumes    from {} (step {})", latest->string(), state.step));
  return lines;
}

}  // namespace

int train_rank(const TrainRequest& request) {
  const RunSettings& settings = request.settings;
  PreparedRun run = prepare_run(settings);
  const LaunchEnvironment launch = request.dry_run ? LaunchEnvironment{} : detect_launch();
  const int local_ranks = request.dry_run ? run.layout().world_size() : launch.local_world_size;
  std::string threads_reason;
  const int threads = local_threads(settings, local_ranks, &threads_reason);
  const Plan plan = make_plan(run.step, planning_place(local_ranks, threads));
  const bool under_launcher = environment_variable("PACELINE_CONTROL").has_value();
  const int ranks = run.layout().world_size();
  const std::string origin = request.dry_run || under_launcher ? fmt::format("{} rank{} of this machine", ranks, ranks == 1 ? "" : "s") : launch.text();
  if (under_launcher && settings.train.threads_per_rank == 0) threads_reason = "chosen by the launcher";
  const std::string text_banner = banner(run, plan, threads_reason, origin);
  if (request.dry_run) {
    std::fputs(text_banner.c_str(), stderr);
    for (const std::string& line : check_resume(run)) std::fprintf(stderr, "  %s\n", line.c_str());
    std::fputs("dry run: everything fits together; nothing was started\n", stderr);
    return 0;
  }

  StopRequest stop(settings.train.max_minutes > 0 ? std::optional<double>(settings.train.max_minutes) : std::nullopt);
  std::optional<RunLock> lock;
  if (launch.rank == 0) lock.emplace(settings.run.folder);
  install_accounting_allocator();
  at::set_num_threads(threads);
  const SupervisionOptions supervision_options{.hang_timeout_s = settings.supervision.hang_timeout_s};
  std::optional<RankSupervision> supervision;
  if (under_launcher || launch.world_size == 1) supervision.emplace(launch, Exchange{}, stop, supervision_options);
  std::shared_ptr<Transport> transport;  // closed only after this rank's own failure is told, or the others' would be first
  try {
    transport = join_ranks(launch, settings);
    if (!supervision) {
      // Under a foreign launcher rank 0 tells the others over the new connections where its control server listens.
      CommunicatorSet everyone(transport, run.layout());
      Communicator& world = everyone.world();
      supervision.emplace(launch,
                          Exchange{.publish = [&](const std::string&, const std::string& value) { world.broadcast_bytes(value, 0); },
                                   .wait_for = [&](const std::string&) { return world.broadcast_bytes({}, 0); }},
                          stop, supervision_options);
    }
    int code = 0;
    check_resume(run);  // before anything in the run's folder is written or replaced
    {
      RankTraining training(request, std::move(run), launch.local_rank, transport, stop, supervision->activity());
      code = training.run(plan, text_banner);
    }
    supervision->finish();
    return code;
  } catch (const std::exception& error) {
    // Until all have met, what a rank misses may be rank 0, which hosts the store: rank 0's own word counts before it.
    const int blamed = !transport && launch.rank != 0 ? 0 : -1;
    if (supervision) supervision->report_failure(error.what(), blamed);
    throw;
  }
}

}  // namespace paceline
