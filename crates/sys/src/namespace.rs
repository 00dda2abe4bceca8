//! A process's own view of what is mounted where (namespaces(7)).

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// Gives this process mounts of its own: it keeps those that there are, and nobody else sees those
/// that it makes. With `own_users` it also gets users of its own, none of which are mapped yet, and
/// may mount without being root; then the process must have only one thread.
pub fn unshare_mounts(own_users: bool) -> Result<(), Errno> {
    let mut flags = UnshareFlags::NEWNS;
    if own_users {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: neither flag makes the thread's table of open files its own (`CLONE_FILES`), on which
    // other threads could rely. `CLONE_NEWNS` gives the thread its own working directory and root,
    // with the values that they have.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}
