//! Interrupting a thread that waits in a system call.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;

use rustix::io::Errno;
use rustix::process::Pid;

/// The signal. It means nothing to a process that does not ask for it.
const SIGNAL: libc::c_int = libc::SIGURG;

/// Does nothing: what counts is that the system call ends.
extern "C" fn nothing(_: libc::c_int) {}

/// Makes a system call that this thread of this process is waiting in fail with EINTR, unless it
/// is one that goes on by itself. A thread that is just about to call is not interrupted: repeat it
/// until the thread has noticed.
///
/// # Errors
/// `SRCH`: there is no such thread.
#[expect(
    clippy::as_conversions,
    reason = "the C library wants the handler's address as a number"
)]
pub fn interrupt(thread: Pid) -> Result<(), Errno> {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: all zeroes is a valid action, and the handler touches nothing. Without
        // SA_RESTART the interrupted call is not repeated.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            let handler: extern "C" fn(libc::c_int) = nothing;
            action.sa_sigaction = handler as libc::sighandler_t;
            libc::sigaction(SIGNAL, &action, ptr::null_mut());
        }
    });
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: a signal that has a handler does not harm the thread, and the kernel checks that the
    // thread is one of this process.
    let done = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_waiting_read_ends() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let (tell, told) = mpsc::channel();
        let waits = thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            let mut byte = [0];
            rustix::io::read(&reader, &mut byte)
        });
        let thread = told.recv().unwrap();
        while !waits.is_finished() {
            interrupt(thread).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waits.join().unwrap(), Err(Errno::INTR));
        assert_eq!(interrupt(thread), Err(Errno::SRCH));
    }
}
