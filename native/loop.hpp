// The run loop: the steps of each device, carried out by one thread a device.
//
// A step is a C function with its arguments, a callback, a copy of a box, or a meeting with other
// devices (await, signal). The loop knows no engine and no Python. On the way it takes no lock and
// allocates no memory. `coexec.runtime.twin` interprets the same steps in Python.
//
// Processors without a thread here, such as GPUs, meet the loop at words in the host's memory, which
// are 0 before a run. They wait for words that the loop sets to 1, and the loop waits for theirs. A
// stop sets all words that they may wait for, so that none waits for ever. It is final in a loop
// with such words, because what they compute then is wrong.
//
// A run may be abandoned: when a step fails, when another thread calls `stop`, or when `look` tells
// the caller's thread to leave. The other threads then end their current step and rest. The next
// run must not begin before `rests` returns true.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
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

// An argument list has this many words. The 64-bit calling conventions of Linux, macOS and Windows
// pass integers and pointers alike, and a function ignores further ones.
constexpr std::size_t kMostArguments = 14;

// A C function that returns 0 if it has worked: an int, or a pointer to an error.
struct Call {
  std::intptr_t function = 0;
  std::array<std::intptr_t, kMostArguments> arguments{};
  bool returns_pointer = false;
  int loaded = -1;  // index of an argument that is an address, whose value is passed
};

// An address: `offset` counts from the pointer of a slot, which each run sets, or from 0.
struct Spot {
  std::int32_t slot = -1;
  std::intptr_t offset = 0;
};

struct Axis {
  std::int64_t size;
  std::int64_t target_stride;  // in bytes
  std::int64_t source_stride;
};

// A copy of `bytes` contiguous bytes for each index of `axes`, of which the last one is innermost.
struct Copy {
  Spot target;
  Spot source;
  std::size_t bytes = 0;
  std::vector<Axis> axes;
};

// Returns false if it has failed.
using Callback = std::function<bool()>;

// A fork does not wait for a callback that only waits for another processor, or launches there.
enum class Kind : std::uint8_t {
  await,
  signal,
  await_word,
  set_word,
  call,
  callback,
  waiting_callback,
  copy
};

struct Step {
  Kind kind;
  std::uint32_t index;  // of the event, or in the list of the program for this kind
};

struct Program {
  std::vector<Step> steps;
  std::vector<std::intptr_t> words;  // addresses
  std::vector<Call> calls;
  std::vector<Callback> callbacks;
  std::vector<Copy> copies;
};

struct Failure {
  std::size_t device;
  std::size_t step;
  std::intptr_t result;  // of the call; 0 for a callback
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

// A word of 32 bits that processors without a thread read and write. They cannot wake a thread.
class OuterWord {
 public:
  explicit OuterWord(std::intptr_t address)
      : value_(reinterpret_cast<std::atomic<std::uint32_t>*>(address)) {}

  std::uint32_t get() const { return value_->load(std::memory_order_acquire); }

  void set() { value_->store(1, std::memory_order_seq_cst); }

  template <typename Needless>
  void sleep(std::uint32_t, Duration, Needless) {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, std::chrono::microseconds(500));
  }

 private:
  std::atomic<std::uint32_t>* value_;
  std::chrono::microseconds pause_{50};
};

class Loop {
 public:
  // Returns false if the caller's thread shall leave the run.
  using Look = std::function<bool()>;

  // `caller`: the device whose program the caller's thread carries out.
  // `spin`: how long a thread that waits keeps its core busy before it sleeps.
  Loop(std::vector<Program> programs, std::size_t caller, std::size_t events, std::size_t slots,
       Duration spin)
      : programs_(std::move(programs)),
        caller_(caller),
        events_(events),
        threads_(programs_.size()),
        slots_(slots),
        spin_(spin) {
    for (std::size_t device = 0; device < programs_.size(); ++device) {
      threads_[device].spans.resize(programs_[device].steps.size());
      if (device != caller) others_.push_back(device);
      for (const Step& step : programs_[device].steps)
        if (step.kind == Kind::set_word)
          set_words_.emplace_back(programs_[device].words[step.index]);
    }
    for (std::size_t i = 0; i < others_.size(); ++i)
      for (std::size_t j = kFan * (i + 1); j < kFan * (i + 2) && j < others_.size(); ++j)
        threads_[others_[i]].wakes.push_back(others_[j]);
  }

  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::vector<std::intptr_t>& slots() { return slots_; }

  // Carries out the program of `device` in every run, until `end`. Not for the caller's device.
  void serve(std::size_t device) {
    Thread& thread = threads_[device];
    std::uint32_t latest = thread.rest.get();
    for (;;) {
      wait(thread.begin, [&](std::uint32_t run) { return run != latest; }, Never{});
      latest = thread.begin.get();
      if (latest == kEnd) return;
      for (std::size_t other : thread.wakes) threads_[other].begin.wake();
      follow(device, latest, nullptr);
      thread.rest.set(latest);
    }
  }

  // Runs all programs once. Returns whether all have ended; none begins after `end`.
  // `timed`: whether to record when each step began and ended.
  bool run(const Look& look, bool timed) {
    timed_ = timed;
    failing_.store(false, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    if (set_words_.empty()) stopped_.store(false, std::memory_order_seq_cst);
    if (ended_.load(std::memory_order_seq_cst)) return false;
    run_ = run_ + 1 == kEnd ? 1 : run_ + 1;
    for (std::size_t other : others_) threads_[other].begin.put(run_);
    for (std::size_t i = 0; i < others_.size() && i < kFan; ++i) threads_[others_[i]].begin.wake();
    Watch watch{look, Clock::now() + kLook};
    if (!follow(caller_, run_, &watch)) return false;
    for (std::size_t other : others_) {
      const auto ended = [&](std::uint32_t run) { return run == run_; };
      if (!wait(threads_[other].rest, ended, Stopped{this, &watch})) return false;
    }
    return !stopped_.load(std::memory_order_seq_cst);
  }

  // Ends the current run, in any thread.
  void stop() {
    stopped_.store(true, std::memory_order_seq_cst);
    if (is_of_this_process())
      for (OuterWord& word : set_words_) word.set();
    for (Word& event : events_) event.wake();
    for (Thread& thread : threads_) thread.rest.wake();
  }

  // Lets all threads return from `serve`, after their current step.
  void end() {
    ended_.store(true, std::memory_order_seq_cst);
    stop();
    for (Thread& thread : threads_) thread.begin.set(kEnd);
  }

  // Whether the thread of a device, other than the caller's, has left the latest run.
  bool rests(std::size_t device) const {
    const std::uint32_t begun = threads_[device].begin.get();
    return begun == kEnd || threads_[device].rest.get() == begun;
  }

  // Keeps threads from beginning further calls, callbacks and copies, until `go_on`.
  void pause() { paused_.store(true, std::memory_order_seq_cst); }

  void go_on() { paused_.store(false, std::memory_order_seq_cst); }

  // Whether no thread but the calling one is inside of a call, callback or copy.
  bool pauses() const {
    for (const Thread& thread : threads_)
      if (thread.busy.load(std::memory_order_seq_cst) &&
          thread.id.load(std::memory_order_relaxed) != std::this_thread::get_id())
        return false;
    return true;
  }

  // The first failure of the latest run; null if there is none.
  const Failure* failure() const {
    return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr;
  }

  const std::vector<Span>& spans(std::size_t device) const { return threads_[device].spans; }

 private:
  static constexpr std::uint32_t kEnd = UINT32_MAX;
  static constexpr std::size_t kFan = 4;  // threads that one thread wakes at the begin of a run
  static constexpr int kPatience = 2;     // nobody wakes a thread that sleeps at an outer word
  static constexpr int kChecks = 32;      // between two looks at the clock while a thread spins

  struct alignas(64) Thread {
    Word begin;  // number of the run that the thread shall carry out
    Word rest;   // number of the run that the thread has left
    std::atomic<bool> busy{false};
    std::atomic<std::thread::id> id{};
    std::vector<std::size_t> wakes;
    std::vector<Span> spans;
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
    Loop* loop;
    Watch* watch;  // null in threads other than the caller's
    bool operator()() const {
      if (loop->stopped_.load(std::memory_order_seq_cst)) return true;
      if (watch == nullptr) return false;
      // A fork in `look` stops the run of the child, which has to leave at once then.
      return !loop->looked(*watch) || loop->stopped_.load(std::memory_order_seq_cst);
    }
    Duration longest() const { return kLook; }
  };

  // False if the caller shall leave the run.
  bool looked(Watch& watch) {
    if (Clock::now() < watch.due) return true;
    const bool stays = watch.look();
    watch.due = Clock::now() + kLook;
    if (!stays) stop();
    return stays;
  }

  // Waits until `arrived(value)`. Returns false if `leave()` became true before. Spins for
  // `patience` times the usual time.
  template <typename Waited, typename Arrived, typename Leave>
  bool wait(Waited& word, Arrived arrived, Leave leave, int patience = 1) {
    if (arrived(word.get())) return true;
    const Clock::time_point end = Clock::now() + patience * spin_;
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
      word.sleep(seen, leave.longest(), leave);
    }
  }

  // Carries out the program of a device. Returns false if the run was stopped.
  bool follow(std::size_t device, std::uint32_t run, Watch* watch) {
    Program& program = programs_[device];
    Thread& thread = threads_[device];
    thread.id.store(std::this_thread::get_id(), std::memory_order_relaxed);
    const Stopped stopped{this, watch};
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      const Step step = program.steps[i];
      if (stopped()) return false;
      const double begin_s = timed_ ? seconds() : 0.0;
      switch (step.kind) {
        case Kind::await: {
          const auto signalled = [&](std::uint32_t value) { return value == run; };
          if (!wait(events_[step.index], signalled, stopped)) return false;
          break;
        }
        case Kind::signal:
          events_[step.index].set(run);
          break;
        case Kind::await_word: {
          OuterWord word(program.words[step.index]);
          if (!wait(word, [](std::uint32_t value) { return value != 0; }, stopped, kPatience))
            return false;
          break;
        }
        case Kind::set_word:
          OuterWord(program.words[step.index]).set();
          break;
        case Kind::waiting_callback:
          if (!program.callbacks[step.index]()) {
            fail({device, i, 0});
            return false;
          }
          break;
        default:
          if (!enter(thread)) return false;
          const std::pair<bool, std::intptr_t> done = carry_out(program, step);
          thread.busy.store(false, std::memory_order_seq_cst);
          if (!done.first) {
            fail({device, i, done.second});
            return false;
          }
      }
      if (timed_) thread.spans[i] = {begin_s, seconds()};
    }
    return true;
  }

  // Notes that a thread is inside of a step, and waits while the loop is paused.
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

  // Whether the step has worked, and what its function has returned.
  std::pair<bool, std::intptr_t> carry_out(Program& program, Step step) {
    switch (step.kind) {
      case Kind::call: {
        const Call& call = program.calls[step.index];
        const std::intptr_t result = invoke(call);
        const bool worked =
            call.returns_pointer ? result == 0 : static_cast<std::int32_t>(result) == 0;
        return {worked, call.returns_pointer ? result : static_cast<std::int32_t>(result)};
      }
      case Kind::callback:
        return {program.callbacks[step.index](), 0};
      default:
        copy(program.copies[step.index]);
        return {true, 0};
    }
  }

  static std::intptr_t invoke(const Call& call) {
    using I = std::intptr_t;
    using Function = I (*)(I, I, I, I, I, I, I, I, I, I, I, I, I, I);
    auto a = call.arguments;
    if (call.loaded >= 0) {
      I& loaded = a[static_cast<std::size_t>(call.loaded)];
      loaded = *reinterpret_cast<const I*>(loaded);
    }
    return reinterpret_cast<Function>(call.function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
                                                     a[8], a[9], a[10], a[11], a[12], a[13]);
  }

  char* address(const Spot& spot) const {
    const std::intptr_t base = spot.slot < 0 ? 0 : slots_[static_cast<std::size_t>(spot.slot)];
    return reinterpret_cast<char*>(base + spot.offset);
  }

  void copy(const Copy& copy) const {
    copy_axes(address(copy.target), address(copy.source), copy, 0);
  }

  static void copy_axes(char* target, const char* source, const Copy& copy, std::size_t depth) {
    if (depth == copy.axes.size()) {
      std::memcpy(target, source, copy.bytes);
      return;
    }
    const Axis& axis = copy.axes[depth];
    const bool innermost = depth + 1 == copy.axes.size();
    for (std::int64_t i = 0; i < axis.size; ++i) {
      if (innermost)
        std::memcpy(target, source, copy.bytes);
      else
        copy_axes(target, source, copy, depth + 1);
      target += axis.target_stride;
      source += axis.source_stride;
    }
  }

  // The first failure counts.
  void fail(const Failure& failure) {
    if (!failing_.exchange(true, std::memory_order_acq_rel)) {
      failure_ = failure;
      failed_.store(true, std::memory_order_release);
    }
    stop();
  }

  // False in a forked child, where the memory of other processors' words may not exist.
  bool is_of_this_process() const {
#if defined(__linux__)
    return getpid() == process_;
#else
    return true;
#endif
  }

  std::vector<Program> programs_;
  std::vector<OuterWord> set_words_;  // that other processors may wait for
#if defined(__linux__)
  const pid_t process_ = getpid();
#endif
  const std::size_t caller_;
  std::vector<Word> events_;
  std::vector<Thread> threads_;
  std::vector<std::intptr_t> slots_;
  std::vector<std::size_t> others_;  // the devices of other threads; they wake each other in a tree
  const Duration spin_;
  std::uint32_t run_ = 0;
  bool timed_ = false;
  Failure failure_{};
  std::atomic<bool> failing_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> paused_{false};
};

}  // namespace coexec
