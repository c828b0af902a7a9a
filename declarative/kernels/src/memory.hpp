// Memory that a call needs on the way, and what is wrong with a description that is not as it has to be.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "vector.hpp"

namespace kernels {

// What a caller has to mend: its text reaches them.
struct Malformed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* otherwise) {
    if (!holds) throw Malformed(otherwise);
}

// A number of entries, unless there are too many to be counted.
inline Count product(Count a, Count b) {
    Count found;
    if (__builtin_mul_overflow(a, b, &found)) throw std::bad_alloc();
    return found;
}

// So many numbers as places: refused if one of them is none.
template <typename To>
inline std::vector<To> places(const Count* from, Count count) {
    require(count >= 0, "an array of a negative length");
    std::vector<To> to(static_cast<std::size_t>(count));
    for (Count i = 0; i < count; i++) {
        require(from[i] >= Count(std::numeric_limits<To>::min()) && from[i] <= Count(std::numeric_limits<To>::max()),
                "a place is out of range");
        to[static_cast<std::size_t>(i)] = static_cast<To>(from[i]);
    }
    return to;
}

// Arrays that live as long as this does.
class Memory {
  public:
    template <typename T>
    T* take(Count count) {
        constexpr std::size_t LINE = 64;
        if (count < 0 || static_cast<std::size_t>(count) > (SIZE_MAX - LINE) / sizeof(T)) throw std::bad_alloc();
        std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + LINE - 1) / LINE * LINE;
        arrays_.emplace_back(std::aligned_alloc(LINE, bytes ? bytes : LINE), &std::free);
        if (!arrays_.back()) throw std::bad_alloc();
        return static_cast<T*>(arrays_.back().get());
    }

    template <typename T>
    T* zeros(Count count) {
        T* array = take<T>(count);
        std::memset(static_cast<void*>(array), 0, static_cast<std::size_t>(count) * sizeof(T));
        return array;
    }

  private:
    std::vector<std::unique_ptr<void, void (*)(void*)>> arrays_;
};

// An array of rows of so many entries.
template <typename T>
struct Rows {
    T* data = nullptr;
    Count width = 0;

    T* operator[](Count row) const { return data + row * width; }
};

using Floats = Rows<double>;

}  // namespace kernels
