#include "paceline/comm/communication_thread.h"

namespace paceline {

class CommunicationThread::JobWork : public Work {
 public:
  explicit JobWork(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  ~JobWork() override { finish(); }

  void wait() override {
    finish();
    if (job_->error) std::rethrow_exception(job_->error);
  }

 private:
  void finish() {
    std::unique_lock lock(job_->mutex);
    job_->changed.wait(lock, [&] { return job_->done; });
  }

  std::shared_ptr<Job> job_;
};

CommunicationThread::~CommunicationThread() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<Work> CommunicationThread::start(std::function<void()> operation) {
  return std::make_unique<JobWork>(enqueue(std::move(operation)));
}

void CommunicationThread::post(std::function<void()> operation) { enqueue(std::move(operation)); }

std::shared_ptr<CommunicationThread::Job> CommunicationThread::enqueue(std::function<void()> operation) {
  auto job = std::make_shared<Job>();
  job->operation = std::move(operation);
  {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    queue_.push_back(job);
  }
  changed_.notify_one();
  return job;
}

void CommunicationThread::run() {
  while (true) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    try {
      job->operation();
    } catch (...) {
      error = std::current_exception();
    }
    job->operation = nullptr;
    {
      std::lock_guard lock(job->mutex);
      job->done = true;
      job->error = error;
    }
    job->changed.notify_all();
  }
}

}  // namespace paceline
