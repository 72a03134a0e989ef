//! What holds for every engine, and which ring each kernel gives.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::FromRawFd;

use super::*;
use crate::engine::posix::PosixEngine;
use crate::engine::uring::{RingFlags, UringEngine, entry_of, set_up};

fn file_with(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

fn uring() -> UringEngine {
    UringEngine::new(8, Waker::new().unwrap()).unwrap()
}

fn posix() -> PosixEngine {
    PosixEngine::new(8, Waker::new().unwrap()).unwrap()
}

/// Does one transfer.
fn move_through(
    engine: &mut dyn Engine,
    file: &File,
    action: Action,
    offset_bytes: u64,
    vectors: &[libc::iovec],
) -> i32 {
    let transfer = Transfer::without_memory(action, file.as_raw_fd(), 42);
    let (vectors, vector_count) = (vectors.as_ptr(), vectors.len());
    carry_out(engine, Transfer { offset_bytes, vectors, vector_count, ..transfer })
}

fn carry_out(engine: &mut dyn Engine, transfer: Transfer) -> i32 {
    // SAFETY: memory, vectors, name and file live in the caller, past the loop below, which reaps the transfer.
    unsafe { engine.submit(transfer) }.unwrap();
    let mut reaped = Vec::new();
    while reaped.is_empty() {
        engine.reap(None, &mut reaped).unwrap();
    }
    assert_eq!((reaped.len(), reaped[0].token), (1, 42));
    reaped[0].result
}

fn vector(memory: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }
}

/// Four bytes of the file.
fn read_through(engine: &mut dyn Engine, file: &File) -> [u8; 4] {
    let mut memory = [0; 4];
    let vectors = [vector(&mut memory)];
    assert_eq!(move_through(engine, file, Action::Read, 3, &vectors), 4);
    memory
}

/// Everything that an engine can do.
fn use_all_of(engine: &mut dyn Engine) {
    let file = file_with(b"0123456789");
    assert_eq!(&read_through(engine, &file), b"3456");
    let (mut one, mut two) = (*b"ab", *b"cde");
    let both = [vector(&mut one), vector(&mut two)];
    assert_eq!(move_through(engine, &file, Action::Write, 4, &both), 5);
    assert_eq!(move_through(engine, &file, Action::Sync, 0, &[]), 0);
    assert_eq!(move_through(engine, &file, Action::Write, 0, &both[1..]), 3);
    let (mut head, mut tail) = ([0; 6], [0; 9]);
    let read = [vector(&mut head), vector(&mut tail)];
    // Short at the end of the file, and nothing behind it.
    assert_eq!(move_through(engine, &file, Action::Read, 0, &read), 10);
    assert_eq!((&head, &tail[..4]), (b"cde3ab", b"cde9".as_slice()));
    assert_eq!(move_through(engine, &file, Action::Read, 10, &read[..1]), 0);
    let read_only = File::open("/dev/null").unwrap();
    assert_eq!(move_through(engine, &read_only, Action::Write, 0, &both), -libc::EBADF);
    make_and_truncate(engine);
}

fn make_and_truncate(engine: &mut dyn Engine) {
    let directory = tempfile::tempdir().unwrap();
    let opened = File::open(directory.path()).unwrap();
    let open = |engine: &mut dyn Engine, flags| {
        let action = Action::Open(flags | libc::O_CLOEXEC);
        let transfer = Transfer::without_memory(action, opened.as_raw_fd(), 42);
        carry_out(engine, Transfer { name: c"some".as_ptr(), ..transfer })
    };
    let make = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    assert_eq!(open(engine, libc::O_RDONLY), -libc::ENOENT);
    let made = open(engine, make);
    assert!(made >= 0);
    // SAFETY: it was opened for us just now.
    let file = unsafe { File::from_raw_fd(made) };
    assert_eq!(open(engine, make), -libc::EEXIST);
    for (action, length) in
        [(Action::Preallocate, 8192), (Action::Truncate, 5000), (Action::Truncate, 4999)]
    {
        let transfer = Transfer::without_memory(action, made, 42);
        assert_eq!(carry_out(engine, Transfer { offset_bytes: length, ..transfer }), 0);
        assert_eq!(file.metadata().unwrap().len(), length);
    }
    let names = Transfer::without_memory(Action::SyncDirectory, opened.as_raw_fd(), 42);
    assert_eq!(carry_out(engine, names), 0);
}

#[test]
fn engines_do_the_same() {
    use_all_of(&mut uring());
    // As on kernels before 6.9.
    let mut older = uring();
    older.can_truncate = false;
    use_all_of(&mut older);
    let mut posix = posix();
    assert_eq!((posix.depth(), posix.description().as_str()), (8, "posix (12 threads)"));
    use_all_of(&mut posix);
}

/// A kernel that knows no more flags than these.
fn kernel_with(known: RingFlags) -> impl Fn(u32, RingFlags) -> io::Result<io_uring::IoUring> {
    move |entries, flags| match flags != known && flags != RingFlags::Plain {
        true => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        false => set_up(entries, flags),
    }
}

#[test]
fn each_kernel_gets_the_best_ring_that_it_knows() {
    let expected = [
        (RingFlags::Plain, "plain"),
        (RingFlags::DeferTaskrun, "single_issuer+defer_taskrun+coop_taskrun"),
    ];
    for (known, flags) in expected {
        let waker = Waker::new().unwrap();
        let mut engine = UringEngine::with(8, waker, kernel_with(known)).unwrap();
        assert_eq!(engine.description(), format!("io_uring ({flags})"));
        use_all_of(&mut engine);
        engine.cancel_all();
        engine.reap(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    }
}

#[test]
fn only_an_unknown_flag_is_a_step_down() {
    let refusing = |errno| move |_, _| Err(io::Error::from_raw_os_error(errno));
    for (errno, call) in [(libc::EINVAL, "Linux"), (libc::ENOMEM, "no memory for rings")] {
        let made = UringEngine::with(8, Waker::new().unwrap(), refusing(errno));
        let message = made.err().unwrap().to_string();
        assert!(message.contains(call) && message.contains("io_uring_setup: "), "{message}");
    }
    let steps = std::cell::Cell::new(0);
    let made = UringEngine::with(8, Waker::new().unwrap(), |_, _| {
        steps.set(steps.get() + 1);
        Err(io::Error::from_raw_os_error(libc::EPERM))
    });
    assert!(matches!(made, Err(EngineError::Unavailable(_))));
    assert_eq!(steps.get(), 1);
}

fn wake_while_waiting(engine: &mut dyn Engine, waker: &Arc<Waker>) {
    waker.prepare_sleep();
    let other = std::thread::spawn({
        let waker = Arc::clone(waker);
        move || waker.wake()
    });
    let mut reaped = Vec::new();
    // Without a limit: a lost wake-up would hang here.
    engine.reap(None, &mut reaped).unwrap();
    other.join().unwrap();
    assert!(reaped.is_empty());
    waker.awake();
    waker.wake();
    // Nothing rings for a thread that is awake, and what rang before is cleared.
    engine.reap(Some(Duration::from_millis(1)), &mut reaped).unwrap();
}

#[test]
fn the_waker_ends_a_wait_and_only_rings_a_sleeper() {
    let waker = Waker::new().unwrap();
    let mut engine = UringEngine::new(8, Arc::clone(&waker)).unwrap();
    wake_while_waiting(&mut engine, &waker);
    assert!(engine.wake_armed, "a waker must not ring for a thread that is awake");
    let waker = Waker::new().unwrap();
    wake_while_waiting(&mut PosixEngine::new(8, Arc::clone(&waker)).unwrap(), &waker);
    let set = [nix::poll::PollFlags::POLLIN].map(|flags| {
        // SAFETY: the waker keeps its descriptor open while it lives.
        let event = unsafe { std::os::fd::BorrowedFd::borrow_raw(waker.descriptor()) };
        nix::poll::poll(&mut [nix::poll::PollFd::new(event, flags)], 0_u8)
    });
    assert_eq!(set, [Ok(0)], "a waker must not ring for a thread that is awake");
}

/// The kernel has the stream of a write in byte 44 of the request, and ignores it before Linux 6.16.
#[test]
fn each_kind_of_write_names_its_stream() {
    let mut memory = [0; 8];
    let vectors = [vector(&mut memory); 2];
    let stream_of = |action, vector_count, buffer| {
        let transfer = Transfer {
            vectors: vectors.as_ptr(),
            vector_count,
            write_stream: 3,
            ..Transfer::without_memory(action, 0, 0)
        };
        // SAFETY: its vectors live as long as it.
        let entry = unsafe { entry_of(transfer, buffer) };
        // SAFETY: an entry is a request of 64 bytes, all of which are initialised.
        let bytes: [u8; 64] = unsafe { std::mem::transmute(entry) };
        bytes[44]
    };
    for (vector_count, buffer) in [(1, None), (1, Some(0)), (2, None)] {
        assert_eq!(stream_of(Action::Write, vector_count, buffer), 3);
        assert_eq!(stream_of(Action::Read, vector_count, buffer), 0);
    }
    assert!(uring().takes_write_streams() && !posix().takes_write_streams());
}
