// `coexec.runtime._loop`: the loop and the team for Python. `coexec.runtime.twin` and `twin_team` have
// the same interfaces.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "loop.hpp"
#include "team.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using coexec::Axis;
using coexec::Call;
using coexec::Copy;
using coexec::Duration;
using coexec::Kind;
using coexec::Program;
using coexec::Spot;
using coexec::Step;
using coexec::Tiles;

// Device, step, result of the C function or 0, exception of the callback or None.
using Outcome = std::tuple<std::size_t, std::size_t, std::intptr_t, nb::object>;

Duration nanoseconds(double seconds) {
  return Duration(static_cast<std::int64_t>(1e9 * seconds));
}

Spot spot(nb::handle spot) {
  return {nb::cast<std::int32_t>(spot.attr("slot")), nb::cast<std::intptr_t>(spot.attr("offset"))};
}

// A thread that asks for Python's lock while the interpreter ends is ended by it, and C++ then ends
// the program. So it sleeps instead.
void stay_if_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  while (Py_IsFinalizing())
#else
  while (_Py_IsFinalizing())
#endif
    std::this_thread::sleep_for(std::chrono::hours(1));
}

// Carries out `run` without Python's lock. `look`: called by the caller's thread between signals.
// Raises its exception, or that of a signal handler.
template <typename Run>
bool run_looking(const nb::object& look, Run run) {
  std::optional<nb::python_error> raised;
  const coexec::Threads::Look looks = [&]() -> bool {
    nb::gil_scoped_acquire acquired;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!look.is_none()) look();
      return true;
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      return false;
    }
  };
  bool ended = false;
  {
    nb::gil_scoped_release released;
    ended = run(looks);
  }
  if (raised) throw std::move(*raised);
  return ended;
}

void serve_threads(coexec::Threads& threads, std::size_t number) {
  PyThreadState* state = PyEval_SaveThread();
  threads.serve(number);
  stay_if_finalizing();
  PyEval_RestoreThread(state);
}

class PyLoop {
 public:
  PyLoop(nb::sequence programs, std::size_t caller, std::size_t events, std::size_t slots,
         double spin_s) {
    const nb::object steps = nb::module_::import_("coexec.runtime.steps");
    types_ = {steps.attr("AwaitEvent"), steps.attr("SignalEvent"), steps.attr("NativeCall"),
              steps.attr("CallPython"), steps.attr("AwaitWord"), steps.attr("SetWord"),
              steps.attr("ComputeTiles")};
    std::vector<Program> made;
    for (nb::handle program : programs) {
      made.emplace_back();
      for (nb::handle step : program) add(made.back(), step, events, slots);
    }
    if (caller >= made.size()) throw std::invalid_argument("the caller's device has no program");
    devices_ = made.size();
    loop_ = std::make_unique<coexec::Loop>(std::move(made), caller, events, slots,
                                           nanoseconds(spin_s));
  }

  coexec::Loop& threads() { return *loop_; }

  std::optional<Outcome> run(const std::vector<std::intptr_t>& slots, nb::object look, bool timed) {
    if (slots.size() != loop_->slots().size())
      throw std::invalid_argument("a run sets another number of slots than its loop has");
    loop_->slots() = slots;
    error_ = nb::none();
    const auto run = [&](const coexec::Threads::Look& looks) { return loop_->run(looks, timed); };
    if (run_looking(look, run)) return std::nullopt;
    if (const coexec::Failure* failure = loop_->failure())
      return Outcome{failure->device, failure->step, failure->result, std::move(error_)};
    return Outcome{devices_, 0, 0, nb::none()};
  }

  std::vector<std::pair<double, double>> spans(std::size_t device) const {
    if (device >= devices_) throw std::out_of_range("no device of this loop has this number");
    std::vector<std::pair<double, double>> spans;
    for (const coexec::Span& span : loop_->spans(device)) spans.push_back({span.begin_s, span.end_s});
    return spans;
  }

 private:
  struct Types {
    nb::object await, signal, call_native, call_python, await_word, set_word, tiles;
  };

  void add(Program& program, nb::handle step, std::size_t events, std::size_t slots) {
    const auto is = [&](const nb::object& type) { return step.type().is(type); };
    const auto number = [](const auto& list) { return static_cast<std::uint32_t>(list.size()); };
    if (is(types_.await) || is(types_.signal)) {
      const auto event = nb::cast<std::uint32_t>(step.attr("event"));
      if (event >= events) throw std::out_of_range("a step names an event that the loop has not");
      program.steps.push_back({is(types_.await) ? Kind::await : Kind::signal, event});
    } else if (is(types_.await_word) || is(types_.set_word)) {
      const Kind kind = is(types_.set_word) ? Kind::set_word : Kind::await_word;
      program.steps.push_back({kind, number(program.words)});
      program.words.push_back(nb::cast<std::intptr_t>(step.attr("address")));
    } else if (is(types_.call_native)) {
      program.steps.push_back({Kind::call, number(program.calls)});
      program.calls.push_back(call(step));
    } else if (is(types_.call_python)) {
      const bool waits = nb::cast<bool>(step.attr("waits"));
      program.steps.push_back(
          {waits ? Kind::waiting_callback : Kind::callback, number(program.callbacks)});
      program.callbacks.push_back(callback(nb::borrow(step.attr("function"))));
    } else if (is(types_.tiles)) {
      program.steps.push_back({Kind::tiles, number(program.tiles)});
      program.tiles.push_back(tiles(step));
    } else {
      program.steps.push_back({Kind::copy, number(program.copies)});
      program.copies.push_back(copy(step, slots));
    }
  }

  static Call call(nb::handle step) {
    Call call;
    call.function = nb::cast<std::intptr_t>(step.attr("function"));
    call.returns_pointer = nb::cast<bool>(step.attr("returns_pointer"));
    std::size_t count = 0;
    for (nb::handle argument : nb::borrow<nb::tuple>(step.attr("arguments"))) {
      if (count == coexec::kMostArguments)
        throw std::invalid_argument("a native step has too many arguments");
      call.arguments[count++] = nb::cast<std::intptr_t>(argument);
    }
    return call;
  }

  coexec::Callback callback(nb::object function) {
    return [this, function = std::move(function)]() -> bool {
      stay_if_finalizing();
      nb::gil_scoped_acquire acquired;
      try {
        function();
        return true;
      } catch (nb::python_error& error) {
        if (error_.is_none()) error_ = nb::borrow(error.value());
        return false;
      }
    };
  }

  static Copy copy(nb::handle step, std::size_t slots) {
    Copy copy;
    copy.target = spot(step.attr("target"));
    copy.source = spot(step.attr("source"));
    for (const Spot& each : {copy.target, copy.source})
      if (each.slot >= 0 && static_cast<std::size_t>(each.slot) >= slots)
        throw std::out_of_range("a step names a slot that the loop has not");
    copy.bytes = nb::cast<std::size_t>(step.attr("run_bytes"));
    for (nb::handle axis : nb::borrow<nb::tuple>(step.attr("axes"))) {
      const auto numbers = nb::borrow<nb::tuple>(axis);
      copy.axes.push_back({nb::cast<std::int64_t>(numbers[0]), nb::cast<std::int64_t>(numbers[1]),
                           nb::cast<std::int64_t>(numbers[2])});
    }
    return copy;
  }

  Tiles tiles(nb::handle step);

  Types types_;
  std::size_t devices_ = 0;
  std::vector<nb::object> kept_;  // the teams of steps, and the pointers that these read
  std::unique_ptr<coexec::Loop> loop_;
  nb::object error_ = nb::none();  // of the first callback that failed; used with Python's lock
};

class PyTeam {
 public:
  PyTeam(std::size_t threads, double spin_s) : team_(threads, nanoseconds(spin_s)) {
    if (threads == 0) throw std::invalid_argument("a team has no thread");
  }

  coexec::Team& threads() { return team_; }

  std::size_t add(nb::sequence launches, std::size_t slots) {
    std::vector<coexec::Launch> made;
    for (nb::handle launch : launches) {
      made.emplace_back();
      made.back().kernel = nb::cast<std::intptr_t>(launch.attr("kernel"));
      made.back().memory_bytes = nb::cast<std::size_t>(launch.attr("memory_bytes"));
      for (nb::handle argument : nb::borrow<nb::tuple>(launch.attr("arguments"))) {
        const auto [slot, offset] = nb::cast<std::pair<std::int32_t, std::intptr_t>>(argument);
        made.back().arguments.push_back({slot, offset});
      }
      for (nb::handle each : nb::borrow<nb::tuple>(launch.attr("tiles")))
        made.back().tiles.push_back(tile(each));
    }
    return team_.add(made, slots);
  }

  bool run(std::size_t number, const std::vector<std::intptr_t>& slots, nb::object look,
           bool timed) {
    if (slots.size() != team_.launches(number).slots())
      throw std::invalid_argument("a run sets another number of slots than its launches have");
    return run_looking(look, [&](const coexec::Threads::Look& looks) {
      return team_.run(number, slots.data(), looks, timed);
    });
  }

  std::vector<std::tuple<double, double, std::size_t>> spans(std::size_t number) {
    std::vector<std::tuple<double, double, std::size_t>> spans;
    for (const coexec::TileSpan& span : team_.launches(number).spans)
      spans.push_back({span.begin_s, span.end_s, span.thread});
    return spans;
  }

 private:
  static coexec::Tile tile(nb::handle tile) {
    coexec::Tile made;
    std::size_t side = 0;
    for (nb::handle axis : nb::borrow<nb::tuple>(tile.attr("box"))) {
      if (side == made.box.size()) throw std::invalid_argument("the box of a tile has three axes");
      const auto [begin, end] = nb::cast<std::pair<std::int64_t, std::int64_t>>(axis);
      made.box[side++] = begin;
      made.box[side++] = end;
    }
    for (nb::handle range : nb::borrow<nb::tuple>(tile.attr("waits")))
      made.waits.push_back({nb::cast<std::uint32_t>(range.attr("launch")),
                            nb::cast<std::uint32_t>(range.attr("first")),
                            nb::cast<std::uint32_t>(range.attr("last"))});
    return made;
  }

  coexec::Team team_;
};

Tiles PyLoop::tiles(nb::handle step) {
  coexec::Team& team = nb::cast<PyTeam&>(step.attr("team")).threads();
  const auto number = nb::cast<std::size_t>(step.attr("number"));
  const nb::object pointers = step.attr("pointers");
  if (nb::len(pointers) != team.launches(number).slots())
    throw std::invalid_argument("a step sets another number of slots than its launches have");
  kept_.push_back(step.attr("team"));
  kept_.push_back(pointers);
  const auto address = nb::cast<std::intptr_t>(pointers.attr("ctypes").attr("data"));
  return {&team, number, reinterpret_cast<const std::intptr_t*>(address)};
}

template <typename Kind>
void bind_threads(nb::class_<Kind>& type) {
  const auto checked = [](Kind& self, std::size_t number) -> coexec::Threads& {
    if (number >= self.threads().count()) throw std::out_of_range("no thread has this number");
    return self.threads();
  };
  type.def("serve", [=](Kind& self, std::size_t n) { serve_threads(checked(self, n), n); }, "device"_a)
      .def("rests", [=](Kind& self, std::size_t n) { return checked(self, n).rests(n); }, "device"_a)
      .def("stop", [](Kind& self) { self.threads().stop(); })
      .def("end", [](Kind& self) { self.threads().end(); })
      .def("pause", [](Kind& self) { self.threads().pause(); })
      .def("pauses", [](Kind& self) { return self.threads().pauses(); })
      .def("go_on", [](Kind& self) { self.threads().go_on(); });
}

}  // namespace

NB_MODULE(_loop, module) {
  nb::set_leak_warnings(false);  // a loop whose threads never came to rest is kept on purpose
  module.attr("MOST_ARGUMENTS") = coexec::kMostArguments;
  nb::class_<PyLoop> loop(module, "NativeLoop");
  loop.def(nb::init<nb::sequence, std::size_t, std::size_t, std::size_t, double>(), "programs"_a,
           "caller"_a, "events"_a, "slots"_a, "spin_s"_a)
      .def("run", &PyLoop::run, "slots"_a, "look"_a = nb::none(), "timed"_a = false)
      .def("spans", &PyLoop::spans, "device"_a);
  bind_threads(loop);
  nb::class_<PyTeam> team(module, "NativeTeam");
  team.def(nb::init<std::size_t, double>(), "threads"_a, "spin_s"_a)
      .def("add", &PyTeam::add, "launches"_a, "slots"_a)
      .def("run", &PyTeam::run, "number"_a, "slots"_a, "look"_a = nb::none(), "timed"_a = false)
      .def("spans", &PyTeam::spans, "number"_a);
  bind_threads(team);
}
