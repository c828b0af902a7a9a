// Work that is shared out to threads: those of a pool, and the caller's own.
//
// The pool belongs to a process: a fork, which takes no threads along, makes one of its own. Where another thread of
// the process is using it, work is done by the caller alone. Which thread does what changes no result.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "vector.hpp"

namespace kernels {

constexpr double WORTH = 200e3;  // operations, some 50 microseconds: with fewer for each, a thread is not woken up

class Pool {
  public:
    // The pool of this process; it lives as long as the process.
    static Pool& of_process() {
        static std::atomic<Pool*> current{nullptr};
        Pool* found = current.load();
        while (!found || found->process_ != getpid()) {
            Pool* made = new Pool();
            if (current.compare_exchange_strong(found, made)) return *made;
            delete made;
        }
        return *found;
    }

    // Call `work` in so many threads at once, the caller's among them; return when all of these calls have.
    void run(Count threads, const std::function<void()>& work) {
        std::unique_lock<std::mutex> alone(used_, std::try_to_lock);
        if (threads < 2 || !alone.owns_lock()) return work();
        {
            std::lock_guard<std::mutex> hold(lock_);
            grow(threads - 1);
            work_ = &work, wanted_ = threads - 1, error_ = nullptr;
        }
        awake_.notify_all();
        std::exception_ptr error;
        try {
            work();
        } catch (...) {
            error = std::current_exception();
        }
        std::unique_lock<std::mutex> hold(lock_);
        wanted_ = 0;  // whoever has not come by now is not needed
        idle_.wait(hold, [this] { return busy_ == 0; });
        if (!error) error = error_;
        if (error) std::rethrow_exception(error);
    }

  private:
    // More threads, or as many as the system gives.
    void grow(Count wanted) try {
        for (; threads_ < wanted; threads_++) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }

    void serve() {
        std::unique_lock<std::mutex> hold(lock_);
        while (true) {
            awake_.wait(hold, [this] { return wanted_ > 0; });
            wanted_--, busy_++;
            const std::function<void()>* work = work_;
            hold.unlock();
            std::exception_ptr error;
            try {
                (*work)();
            } catch (...) {
                error = std::current_exception();
            }
            hold.lock();
            if (error) error_ = error;
            if (--busy_ == 0) idle_.notify_one();
        }
    }

    const pid_t process_ = getpid();
    std::mutex used_, lock_;
    std::condition_variable awake_, idle_;
    Count threads_ = 0, wanted_ = 0, busy_ = 0;
    const std::function<void()>* work_ = nullptr;
    std::exception_ptr error_;
};

// How many threads so much work is worth: pieces, of so many operations each.
inline Count threads_for(Count pieces, double operations, Count threads) {
    double worth = 1 + operations * double(pieces) / WORTH;
    if (worth < double(threads)) threads = Count(worth);
    return threads < pieces ? threads : pieces;
}

// Do pieces of work of so many operations each, in at most so many threads.
//
// `make` makes what a thread needs, a function of the number of a piece.
template <typename Make>
inline void share_out(Count pieces, double operations, Count threads, Make make) {
    std::atomic<Count> next{0};
    auto work = [&] {
        auto one = make();
        for (Count i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) one(i);
    };
    threads = threads_for(pieces, operations, threads);
    if (threads < 2) return work();
    Pool::of_process().run(threads, work);
}

}  // namespace kernels
