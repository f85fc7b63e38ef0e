// What the threads of a loop and of a team share: how they begin and leave a run, wait, and pause.
//
// One thread calls `run`, the others are inside of `serve`. A thread that waits spins for some time
// and then sleeps (futex). On the way they take no lock and allocate no memory.
//
// A run may be abandoned: when it fails, when another thread calls `stop`, or when `look` tells the
// caller's thread to leave. The other threads then end their current step and rest. The next run
// must not begin before `rests` returns true.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace coexec {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;

// The caller's thread calls `look` at least this often, except during a step.
constexpr Duration kLook = std::chrono::milliseconds(10);

constexpr int kChecks = 32;  // between two looks at the clock while a thread spins

// An address: `offset` counts from the pointer of a slot, which each run sets, or from 0.
struct Spot {
  std::int32_t slot = -1;
  std::intptr_t offset = 0;
};

struct Span {
  double begin_s;
  double end_s;
};

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// A number that threads wait for, on a cache line of its own.
class alignas(64) Word {
 public:
  std::uint32_t get() const { return value_.load(std::memory_order_seq_cst); }

  void set(std::uint32_t value) {
    put(value);
    wake();
  }

  // Sets without waking. To be followed by `wake`, in any thread.
  void put(std::uint32_t value) { value_.store(value, std::memory_order_seq_cst); }

  void wake() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
#if defined(__linux__)
    syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
  }

  // Wakes the threads that sleep, after something else has changed that they wait for.
  void ring() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    value_.fetch_add(1, std::memory_order_seq_cst);
    wake();
  }

  // Sleeps while the value is `seen`, at most for `longest`. May return earlier.
  template <typename Needless>
  void sleep(std::uint32_t seen, Duration longest, Needless needless) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (get() == seen && !needless()) {
#if defined(__linux__)
      const timespec time{static_cast<time_t>(longest.count() / 1000000000),
                          static_cast<long>(longest.count() % 1000000000)};
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
#else
      std::this_thread::sleep_for(std::min<Duration>(longest, std::chrono::microseconds(50)));
#endif
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// Waits until `arrived(value)`. Returns false if `leave()` became true before. Spins for `spin`.
template <typename Waited, typename Arrived, typename Leave>
bool wait(Waited& word, Arrived arrived, Leave leave, Duration spin) {
  if (arrived(word.get())) return true;
  const Clock::time_point end = Clock::now() + spin;
  do {
    for (int i = 0; i < kChecks; ++i) {
      if (arrived(word.get())) return true;
      relax();
    }
    if (leave()) return false;
  } while (Clock::now() < end);
  for (;;) {
    const std::uint32_t seen = word.get();
    if (arrived(seen)) return true;
    if (leave()) return false;
    word.sleep(seen, leave.longest(), [&] { return arrived(word.get()) || leave(); });
  }
}

class Threads {
 public:
  // Returns false if the caller's thread shall leave the run.
  using Look = std::function<bool()>;

  // `caller`: the thread that calls `run`.
  // `spin`: how long a thread that waits keeps its core busy before it sleeps.
  Threads(std::size_t count, std::size_t caller, Duration spin)
      : caller_(caller), threads_(count), spin_(spin) {
    for (std::size_t number = 0; number < count; ++number)
      if (number != caller) others_.push_back(number);
    for (std::size_t i = 0; i < others_.size(); ++i)
      for (std::size_t j = kFan * (i + 1); j < kFan * (i + 2) && j < others_.size(); ++j)
        threads_[others_[i]].wakes.push_back(others_[j]);
  }

  virtual ~Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  std::size_t count() const { return threads_.size(); }

  // Carries out the share of a thread in every run, until `end`. Not for the caller's thread.
  void serve(std::size_t number) {
    Thread& thread = threads_[number];
    std::uint32_t latest = thread.rest.get();
    for (;;) {
      wait(thread.begin, [&](std::uint32_t run) { return run != latest; }, Never{}, spin_);
      latest = thread.begin.get();
      if (latest == kEnd) return;
      for (std::size_t other : thread.wakes) threads_[other].begin.wake();
      follow(number, latest, nullptr);
      thread.rest.set(latest);
    }
  }

  // Ends the current run, in any thread.
  void stop() {
    stopped_.store(true, std::memory_order_seq_cst);
    release();
    for (Thread& thread : threads_) thread.rest.wake();
  }

  // Lets all threads return from `serve`, after their current step.
  void end() {
    ended_.store(true, std::memory_order_seq_cst);
    stop();
    for (Thread& thread : threads_) thread.begin.set(kEnd);
  }

  // Whether a thread, other than the caller's, has left the latest run.
  bool rests(std::size_t number) const {
    const std::uint32_t begun = threads_[number].begin.get();
    return begun == kEnd || threads_[number].rest.get() == begun;
  }

  // Keeps threads from beginning further steps, until `go_on`.
  virtual void pause() { paused_.store(true, std::memory_order_seq_cst); }

  virtual void go_on() { paused_.store(false, std::memory_order_seq_cst); }

  // Whether no thread but the calling one is inside of a step.
  virtual bool pauses() const {
    for (const Thread& thread : threads_)
      if (thread.busy.load(std::memory_order_seq_cst) &&
          thread.id.load(std::memory_order_relaxed) != std::this_thread::get_id())
        return false;
    return true;
  }

 protected:
  static constexpr std::uint32_t kEnd = UINT32_MAX;
  static constexpr std::size_t kFan = 4;  // threads that one thread wakes at the begin of a run

  struct alignas(64) Thread {
    Word begin;  // number of the run that the thread shall carry out
    Word rest;   // number of the run that the thread has left
    std::atomic<bool> busy{false};
    std::atomic<std::thread::id> id{};
    std::vector<std::size_t> wakes;
  };

  // When the caller's thread looks for signals next.
  struct Watch {
    const Look& look;
    Clock::time_point due;
  };

  // Reasons to stop waiting.
  struct Never {
    bool operator()() const { return false; }
    Duration longest() const { return std::chrono::hours(1); }
  };
  struct Stopped {
    Threads* threads;
    Watch* watch;  // null in threads other than the caller's
    bool operator()() const {
      if (threads->stopped_.load(std::memory_order_seq_cst)) return true;
      if (watch == nullptr) return false;
      // A fork in `look` stops the run of the child, which has to leave at once then.
      return !threads->looked(*watch) || threads->stopped_.load(std::memory_order_seq_cst);
    }
    Duration longest() const { return kLook; }
  };

  // Carries out the share of a thread in a run. Returns false if the run was stopped.
  virtual bool follow(std::size_t number, std::uint32_t run, Watch* watch) = 0;

  // Wakes the threads that wait inside of a run that has been stopped.
  virtual void release() = 0;

  // Begins a run in all threads and carries out the caller's share. Returns false if the run was
  // stopped, or if `end` was called before.
  bool begin(Watch& watch) {
    if (ended_.load(std::memory_order_seq_cst)) return false;
    run_ = run_ + 1 == kEnd ? 1 : run_ + 1;
    for (std::size_t other : others_) threads_[other].begin.put(run_);
    for (std::size_t i = 0; i < others_.size() && i < kFan; ++i) threads_[others_[i]].begin.wake();
    return follow(caller_, run_, &watch);
  }

  // Notes that a thread is inside of a step, and waits during a pause. Returns false if the run was
  // stopped meanwhile.
  bool enter(Thread& thread) {
    thread.busy.store(true, std::memory_order_seq_cst);
    while (paused_.load(std::memory_order_seq_cst)) {
      thread.busy.store(false, std::memory_order_seq_cst);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      if (stopped_.load(std::memory_order_seq_cst)) return false;
      thread.busy.store(true, std::memory_order_seq_cst);
    }
    return true;
  }

  static void leave(Thread& thread) { thread.busy.store(false, std::memory_order_seq_cst); }

  const std::size_t caller_;
  std::vector<Thread> threads_;
  std::vector<std::size_t> others_;  // than the caller's; they wake each other in a tree
  const Duration spin_;
  std::uint32_t run_ = 0;
  std::atomic<bool> stopped_{false};

 private:
  // False if the caller shall leave the run.
  bool looked(Watch& watch) {
    if (Clock::now() < watch.due) return true;
    const bool stays = watch.look();
    watch.due = Clock::now() + kLook;
    if (!stays) stop();
    return stays;
  }

  std::atomic<bool> ended_{false};
  std::atomic<bool> paused_{false};
};

}  // namespace coexec
