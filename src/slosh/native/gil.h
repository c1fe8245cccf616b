// Working without Python's lock, so that the interpreter can end while a daemon thread does so.
//
// Up to Python 3.13 a thread that asks for the lock when the interpreter ends is unwound by pthread_exit, and C++ calls std::terminate where that
// meets a function that must not throw. So a thread that comes back when the interpreter ends is left to wait for the end of the process, as Python
// 3.14 does it. A handler of `atexit` says when that is: from then on nobody but the main thread asks for the lock, and those who have asked get it
// before the handler returns.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace slosh {

class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked &) = delete;
  Unlocked &operator=(const Unlocked &) = delete;
  ~Unlocked() {
    ++asking_;
    if (ending_ && std::this_thread::get_id() != main_) {
      --asking_;
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
    PyEval_RestoreThread(state_);
    --asking_;
  }

  // Called once, by the main thread, when the interpreter is about to end. The wait is short, and bounded: a process that was forked meanwhile has
  // none of the threads that it counted.
  static void end() {
    main_ = std::this_thread::get_id();
    ending_ = true;
    PyThreadState *state = PyEval_SaveThread();
    for (int i = 0; asking_ && i < 1000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(state);
  }

 private:
  PyThreadState *state_;
  inline static std::atomic<bool> ending_{false};
  inline static std::atomic<int> asking_{0};
  inline static std::thread::id main_;
};

}  // namespace slosh
