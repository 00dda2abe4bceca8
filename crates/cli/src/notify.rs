//! Tells a service manager that a server in the foreground is ready, as sd_notify(3) does: a
//! datagram to the socket that `NOTIFY_SOCKET` names. Units with `Type=notify` wait for it.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that the volume is mounted, if somebody waits for that.
pub(crate) fn ready() {
    if let Some(name) = env::var_os("NOTIFY_SOCKET")
        && let Err(e) = send(name.as_bytes(), b"READY=1")
    {
        tracing::warn!(
            "{}: the service manager cannot be told: {e}",
            name.display()
        );
    }
}

fn send(name: &[u8], message: &[u8]) -> io::Result<()> {
    let address = match name {
        // A name that is in no directory.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(message, &address)?;
    Ok(())
}
