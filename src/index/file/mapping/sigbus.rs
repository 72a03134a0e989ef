//! The handler of SIGBUS, which the kernel raises for a page of a mapping that the disk does not return. Among others' handlers: what is
//! not a fault in a mapping of ours goes on to whoever had the signal before.

#![allow(unsafe_code, reason = "a signal handler")]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use super::mapped_range::{MAPPED_RANGES, MappedRange};

/// What is to be done with a fault that is not ours: the handler that was there when this one was put in its place.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// The thread that is in the previous handler, called from here.
static CHAINING: AtomicI32 = AtomicI32::new(0);

/// A signal that a thread of this process sent to itself was let pass, and no fault has come since.
static LET_PASS: AtomicBool = AtomicBool::new(false);

/// Puts the handler in place, again if somebody else's has taken its place since the last time.
pub(super) fn install() {
    let ours = on_bus_error as *const () as usize;
    // SAFETY: all-zero is a valid sigaction; the calls get valid pointers to one each. The handlers keep to what is safe where
    // they are called: atomics, and system calls that POSIX lists for signal handlers, or that touch nothing of the process's.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut current);
        if current.sa_sigaction == ours {
            return;
        }
        // Never freed: the handler may be looking at the older one.
        let is_first = PREVIOUS.swap(Box::into_raw(Box::new(current)), Ordering::SeqCst).is_null();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ours;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        if is_first {
            libc::pthread_atfork(None, None, Some(forget_all));
        }
    }
}

/// In a fork: what its parent had mapped is not mapped there, and its addresses may become somebody else's.
extern "C" fn forget_all() {
    MAPPED_RANGES.iter().for_each(MappedRange::release);
}

/// Makes a hole if the fault is in a mapping of ours; else does what would have happened without us.
///
/// A handler that was installed later may get the fault first, put this one back in place, and send the signal on (Python's
/// faulthandler does both). What was sent tells nothing of an address. So it is let pass once: if it was a fault the access is
/// repeated, and comes here.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo; a fault has an address, and for other origins the
    // field is some number that lies in no mapping but by chance, which `si_code` rules out.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Positive: raised by the kernel for a fault, not sent by a process.
    let is_fault = code > 0;
    if is_fault
        && MAPPED_RANGES
            .iter()
            .find(|range| range.contains(address))
            .is_some_and(|range| range.make_hole(address))
    {
        LET_PASS.store(false, Ordering::SeqCst);
        return;
    }
    // SAFETY: null, or a sigaction that is never freed.
    let Some(previous) = (unsafe { PREVIOUS.load(Ordering::SeqCst).as_ref() }) else { return };
    // SAFETY: no pointers.
    let thread = unsafe { libc::gettid() };
    let is_passed_on = CHAINING.load(Ordering::SeqCst) == thread;
    let is_default = matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    if is_default || is_passed_on {
        // From raise() in this process, which is where a handler comes from that sends the signal on.
        let is_own = code == libc::SI_TKILL;
        if is_own && !is_passed_on && !LET_PASS.swap(true, Ordering::SeqCst) {
            return;
        }
        // SAFETY: all-zero is the default action with no flags; the system calls get a valid pointer and numbers.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            let end = if is_passed_on { &raw const default } else { &raw const *previous };
            libc::sigaction(signal, end, ptr::null_mut());
            // A fault is repeated after the return; what was sent is not.
            if !is_fault {
                libc::raise(signal);
            }
        }
        return;
    }
    let before = CHAINING.swap(thread, Ordering::SeqCst);
    if previous.sa_flags & libc::SA_SIGINFO != 0 {
        type Informed = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: with SA_SIGINFO the field holds a function of this type.
        let handler = unsafe { std::mem::transmute::<usize, Informed>(previous.sa_sigaction) };
        handler(signal, info, context);
    } else {
        type Plain = extern "C" fn(libc::c_int);
        // SAFETY: without SA_SIGINFO the field holds a function of this type.
        let handler = unsafe { std::mem::transmute::<usize, Plain>(previous.sa_sigaction) };
        handler(signal);
    }
    CHAINING.store(before, Ordering::SeqCst);
}
