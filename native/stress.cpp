// Runs of the loop under a sanitizer: results in order, failures, stops, pauses, words of other
// processors, and the end.

#include <cstdio>
#include <cstdlib>

#include "loop.hpp"

namespace {

using coexec::Call;
using coexec::Copy;
using coexec::Kind;
using coexec::Loop;
using coexec::Program;
using coexec::Spot;

constexpr std::size_t kDevices = 4;
constexpr std::size_t kStages = 20;
constexpr std::size_t kRuns = 300;

int add_one(std::int64_t* number) {
  ++*number;
  return 0;
}

int refuse() { return -5; }

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "stress: %s\n", what);
  std::exit(1);
}

Call call_of(int (*function)(std::int64_t*), std::int64_t* argument) {
  Call call;
  call.function = reinterpret_cast<std::intptr_t>(function);
  call.arguments[0] = reinterpret_cast<std::intptr_t>(argument);
  return call;
}

// Each device copies the number of the one before, from an earlier stage, and adds one.
std::vector<Program> ring(std::vector<std::vector<std::int64_t>>& numbers) {
  std::vector<Program> programs(kDevices);
  for (std::size_t device = 0; device < kDevices; ++device) {
    Program& program = programs[device];
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      const std::size_t before = (device + kDevices - 1) % kDevices;
      std::int64_t* number = &numbers[stage][device];
      if (stage > 0) {
        const auto event = static_cast<std::uint32_t>((stage - 1) * kDevices + before);
        program.steps.push_back({Kind::await, event});
        Copy copy;
        copy.target = Spot{-1, reinterpret_cast<std::intptr_t>(number)};
        copy.source = Spot{-1, reinterpret_cast<std::intptr_t>(&numbers[stage - 1][before])};
        copy.bytes = sizeof(std::int64_t);
        program.steps.push_back({Kind::copy, static_cast<std::uint32_t>(program.copies.size())});
        program.copies.push_back(copy);
      }
      program.steps.push_back({Kind::call, static_cast<std::uint32_t>(program.calls.size())});
      program.calls.push_back(call_of(add_one, number));
      program.steps.push_back({Kind::signal, static_cast<std::uint32_t>(stage * kDevices + device)});
    }
  }
  return programs;
}

void await_rest(const Loop& loop) {
  for (std::size_t device = 1; device < kDevices; ++device)
    while (!loop.rests(device)) std::this_thread::yield();
}

struct Crew {
  explicit Crew(Loop& loop) : loop(loop) {
    for (std::size_t device = 1; device < kDevices; ++device)
      threads.emplace_back([&loop, device] { loop.serve(device); });
  }
  ~Crew() {
    loop.end();
    for (std::thread& thread : threads) thread.join();
  }
  Loop& loop;
  std::vector<std::thread> threads;
};

void runs_in_order(coexec::Duration spin) {
  std::vector<std::vector<std::int64_t>> numbers(kStages, std::vector<std::int64_t>(kDevices));
  Loop loop(ring(numbers), 0, kStages * kDevices, 0, spin);
  Crew crew(loop);
  for (std::size_t run = 0; run < kRuns; ++run) {
    for (std::int64_t& first : numbers[0]) first = static_cast<std::int64_t>(run);
    require(loop.run([] { return true; }, run % 2 == 0), "a run has not ended");
    for (const std::int64_t last : numbers[kStages - 1])
      require(last == static_cast<std::int64_t>(run + kStages), "a number is wrong");
  }
}

void fails_and_goes_on(coexec::Duration spin) {
  std::vector<Program> programs(kDevices);
  for (std::size_t device = 0; device < kDevices; ++device)
    programs[device].steps.push_back({Kind::await, 0});
  Call call;
  call.function = reinterpret_cast<std::intptr_t>(&refuse);
  programs[2].calls.push_back(call);
  programs[2].steps[0] = {Kind::call, 0};
  Loop loop(std::move(programs), 0, 1, 0, spin);
  Crew crew(loop);
  for (std::size_t run = 0; run < kRuns; ++run) {
    require(!loop.run([] { return true; }, false), "a failure was not noticed");
    const coexec::Failure* failure = loop.failure();
    require(failure != nullptr && failure->device == 2 && failure->result == -5, "wrong failure");
    await_rest(loop);
  }
}

void stops(coexec::Duration spin) {
  std::vector<Program> programs(kDevices);
  for (Program& program : programs) program.steps.push_back({Kind::await, 0});
  Loop loop(std::move(programs), 0, 1, 0, spin);
  Crew crew(loop);
  for (int run = 0; run < 10; ++run) {
    std::atomic<bool> done{false};
    std::thread other([&] {
      while (!done.load()) {  // a stop in front of the run is none
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        loop.stop();
      }
    });
    require(!loop.run([] { return true; }, false), "a stopped run has ended");
    done.store(true);
    other.join();
    await_rest(loop);
    require(!loop.run([] { return false; }, false), "a run has not looked");
    await_rest(loop);
  }
}

void pauses() {
  std::vector<std::vector<std::int64_t>> numbers(kStages, std::vector<std::int64_t>(kDevices));
  Loop loop(ring(numbers), 0, kStages * kDevices, 0, coexec::Duration(1000));
  Crew crew(loop);
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done.load()) {
      loop.pause();
      while (!loop.pauses()) std::this_thread::yield();
      loop.go_on();
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  for (std::size_t run = 0; run < kRuns; ++run) {
    for (std::int64_t& first : numbers[0]) first = 0;
    require(loop.run([] { return true; }, false), "a paused run has not ended");
    require(numbers[kStages - 1][0] == kStages, "a number is wrong behind a pause");
  }
  done.store(true);
  other.join();
}

// Another processor adds one between two words. It may wait for ever if a stop does not release it.
void meets_at_words(coexec::Duration spin) {
  std::atomic<std::uint32_t> words[2] = {};
  std::int64_t number = 0;
  std::vector<Program> programs(kDevices);
  Program& program = programs[1];
  program.calls.push_back(call_of(add_one, &number));
  for (std::atomic<std::uint32_t>& word : words)
    program.words.push_back(reinterpret_cast<std::intptr_t>(&word));
  program.steps = {{Kind::call, 0}, {Kind::set_word, 0}, {Kind::await_word, 1}, {Kind::call, 0}};
  program.steps.push_back({Kind::signal, 0});
  programs[0].steps.push_back({Kind::await, 0});
  Loop loop(std::move(programs), 0, 1, 0, spin);
  Crew crew(loop);
  for (std::size_t run = 0; run < kRuns; ++run) {
    const bool stopped = run + 1 == kRuns;
    for (std::atomic<std::uint32_t>& word : words) word.store(0);
    number = 0;
    std::thread other([&] {
      while (words[0].load() == 0) std::this_thread::yield();
      if (stopped) return;
      ++number;
      words[1].store(1);
    });
    require(loop.run([&] { return !stopped; }, false) != stopped, "a run at words has not ended");
    other.join();
    if (!stopped) require(number == 3, "a number is wrong behind a word");
  }
  await_rest(loop);
  require(!loop.run([] { return true; }, false), "a loop with words runs again behind a stop");
}

}  // namespace

int main() {
  for (const coexec::Duration spin : {coexec::Duration(0), coexec::Duration(100000)}) {
    runs_in_order(spin);
    fails_and_goes_on(spin);
    stops(spin);
    meets_at_words(spin);
  }
  pauses();
  std::puts("stress: all right");
}
