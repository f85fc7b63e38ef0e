// The run loop: the steps of each device, carried out by one thread a device.
//
// A step is a C function with its arguments, a callback, a copy of a box, a network that a team
// computes (team.hpp), or a meeting with other devices (await, signal). The loop knows no engine and
// no Python. On the way it takes no lock and allocates no memory. `coexec.runtime.twin` interprets
// the same steps in Python.
//
// Processors without a thread here, such as GPUs, meet the loop at words in the host's memory, which
// are 0 before a run. They wait for words that the loop sets to 1, and the loop waits for theirs. A
// stop sets all words that they may wait for, so that none waits for ever. It is final in a loop
// with such words, because what they compute then is wrong.
//
// How a run is abandoned: threads.hpp.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "team.hpp"
#include "threads.hpp"

namespace coexec {

// An argument list has this many words. The 64-bit calling conventions of Linux, macOS and Windows
// pass integers and pointers alike, and a function ignores further ones.
constexpr std::size_t kMostArguments = 14;

// A C function that returns 0 if it has worked: an int, or a pointer to an error.
struct Call {
  std::intptr_t function = 0;
  std::array<std::intptr_t, kMostArguments> arguments{};
  bool returns_pointer = false;
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

// Launches that a team computes. The thread of the device is the team's thread 0.
struct Tiles {
  Team* team = nullptr;
  std::size_t number = 0;
  const std::intptr_t* slots = nullptr;  // read when the step begins
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
  copy,
  tiles
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
  std::vector<Tiles> tiles;
};

struct Failure {
  std::size_t device;
  std::size_t step;
  std::intptr_t result;  // of the call; 0 for a callback
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

class Loop : public Threads {
 public:
  // One thread a device. `caller`: the device whose program the caller's thread carries out.
  Loop(std::vector<Program> programs, std::size_t caller, std::size_t events, std::size_t slots,
       Duration spin)
      : Threads(programs.size(), caller, spin),
        programs_(std::move(programs)),
        events_(events),
        slots_(slots),
        spans_(programs_.size()) {
    for (std::size_t device = 0; device < programs_.size(); ++device) {
      spans_[device].resize(programs_[device].steps.size());
      for (const Step& step : programs_[device].steps)
        if (step.kind == Kind::set_word)
          set_words_.emplace_back(programs_[device].words[step.index]);
      for (const Tiles& tiles : programs_[device].tiles)
        if (std::find(teams_.begin(), teams_.end(), tiles.team) == teams_.end())
          teams_.push_back(tiles.team);
    }
  }

  std::vector<std::intptr_t>& slots() { return slots_; }

  // Runs all programs once. Returns whether all have ended; none begins after `end`.
  // `timed`: whether to record when each step began and ended.
  bool run(const Look& look, bool timed) {
    timed_ = timed;
    failing_.store(false, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    if (set_words_.empty()) stopped_.store(false, std::memory_order_seq_cst);
    Watch watch{look, Clock::now() + kLook};
    if (!begin(watch)) return false;
    for (std::size_t other : others_) {
      const auto ended = [&](std::uint32_t run) { return run == run_; };
      if (!wait(threads_[other].rest, ended, Stopped{this, &watch}, spin_)) return false;
    }
    return !stopped_.load(std::memory_order_seq_cst);
  }

  // The first failure of the latest run; null if there is none.
  const Failure* failure() const {
    return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr;
  }

  const std::vector<Span>& spans(std::size_t device) const { return spans_[device]; }

  void pause() override {
    Threads::pause();
    for (Team* team : teams_) team->pause();
  }

  void go_on() override {
    for (Team* team : teams_) team->go_on();
    Threads::go_on();
  }

  bool pauses() const override {
    return Threads::pauses() &&
           std::all_of(teams_.begin(), teams_.end(), [](const Team* team) { return team->pauses(); });
  }

 private:
  static constexpr int kPatience = 2;  // times `spin_`: nobody wakes a sleeper at an outer word

  void release() override {
    if (is_of_this_process())
      for (OuterWord& word : set_words_) word.set();
    for (Word& event : events_) event.wake();
    for (Team* team : teams_) team->stop();
  }

  // Carries out the program of a device. Returns false if the run was stopped.
  bool follow(std::size_t device, std::uint32_t run, Watch* watch) override {
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
          if (!wait(events_[step.index], signalled, stopped, spin_)) return false;
          break;
        }
        case Kind::signal:
          events_[step.index].set(run);
          break;
        case Kind::await_word: {
          OuterWord word(program.words[step.index]);
          if (!wait(word, [](std::uint32_t value) { return value != 0; }, stopped, kPatience * spin_))
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
        case Kind::tiles: {
          const Tiles& tiles = program.tiles[step.index];
          // A stop before the team has begun does not reach it, so the team looks, too.
          const Look look = [&] { return !stopped(); };
          if (!tiles.team->run(tiles.number, tiles.slots, look, timed_)) {
            stop();
            return false;
          }
          break;
        }
        default:
          if (!enter(thread)) return false;
          const std::pair<bool, std::intptr_t> done = carry_out(program, step);
          leave(thread);
          if (!done.first) {
            fail({device, i, done.second});
            return false;
          }
      }
      if (timed_) spans_[device][i] = {begin_s, seconds()};
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
    const auto& a = call.arguments;
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
  std::vector<Team*> teams_;  // each once
  std::vector<Word> events_;
  std::vector<std::intptr_t> slots_;
  std::vector<std::vector<Span>> spans_;  // by device and step
  bool timed_ = false;
  Failure failure_{};
  std::atomic<bool> failing_{false};
  std::atomic<bool> failed_{false};
};

}  // namespace coexec
