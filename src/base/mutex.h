// Mutexes that clang's thread-safety analysis understands (-Wthread-safety); other compilers see
// the plain std types.
//
//   Mutex mutex_;
//   int value_ KVLINK_GUARDED_BY(mutex_);
//   void Set(int v) { const MutexLock lock(mutex_); value_ = v; }
#pragma once

#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#ifdef __clang__
#define KVLINK_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define KVLINK_THREAD_ATTRIBUTE(x)
#endif
#define KVLINK_GUARDED_BY(mutex) KVLINK_THREAD_ATTRIBUTE(guarded_by(mutex))
#define KVLINK_REQUIRES(...) KVLINK_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define KVLINK_REQUIRES_SHARED(...) KVLINK_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define KVLINK_EXCLUDES(...) KVLINK_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace kvlink::base {

class KVLINK_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() KVLINK_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void Unlock() KVLINK_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }  // for a std::condition_variable

 private:
  std::mutex mutex_;
};

class KVLINK_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVLINK_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() KVLINK_THREAD_ATTRIBUTE(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Many readers or one writer.
class KVLINK_THREAD_ATTRIBUTE(capability("mutex")) SharedMutex {
 public:
  void Lock() KVLINK_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void Unlock() KVLINK_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  void LockShared() KVLINK_THREAD_ATTRIBUTE(acquire_shared_capability()) { mutex_.lock_shared(); }
  void UnlockShared() KVLINK_THREAD_ATTRIBUTE(release_shared_capability()) {
    mutex_.unlock_shared();
  }

 private:
  std::shared_mutex mutex_;
};

class KVLINK_THREAD_ATTRIBUTE(scoped_lockable) WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) KVLINK_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~WriterLock() KVLINK_THREAD_ATTRIBUTE(release_capability()) { mutex_.Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class KVLINK_THREAD_ATTRIBUTE(scoped_lockable) ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) KVLINK_THREAD_ATTRIBUTE(acquire_shared_capability(mutex))
      : mutex_(mutex) {
    mutex_.LockShared();
  }
  ~ReaderLock() KVLINK_THREAD_ATTRIBUTE(release_capability()) { mutex_.UnlockShared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace kvlink::base
