//! Freezing: a mount stands still while somebody copies its image.
//!
//! Somebody sets `system.stetfs.control` to `freeze SECONDS SOCKET`: the name of a socket that
//! listens, in no directory (unix(7), abstract). The server connects, stops the mount, writes home
//! what is only logged, and answers.
//! The mount goes on when the other end of the connection closes, also because its process has
//! died, and after that many seconds at the latest: then this end closes first.

use std::ffi::OsStr;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::backend::Backend;
use crate::errno::{Outcome, errno};
use crate::server::FsServer;
use crate::still::Refused;
use crate::wire::abi::InHeader;
use crate::wire::{Answered, Ticket};

/// How long it may take to write home what is only logged.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads what is asked for: how long at most, and the socket's name.
fn parse(words: &OsStr) -> Option<(Duration, &str)> {
    let (seconds, name) = words.to_str()?.split_once(' ')?;
    let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0)?;
    Some((Duration::from_secs(seconds), name))
}

impl<B: Backend> FsServer<B> {
    /// Answers who asks that the mount stand still: as soon as it does.
    pub(crate) fn freeze(
        self: &Arc<Self>,
        from: &InHeader,
        words: &OsStr,
        ticket: &dyn Fn() -> Ticket,
    ) -> Outcome<Answered> {
        let (limit, name) = parse(words).ok_or(Errno::INVAL)?;
        // The kernel would abort the connection first.
        if self.options.abort_hung.is_some_and(|hung| hung <= limit) {
            return Err(Errno::RANGE);
        }
        let address = SocketAddr::from_abstract_name(name).map_err(|_| Errno::INVAL)?;
        self.stop_for(from, ticket, move |server, asked| {
            let unreachable = |e: std::io::Error| {
                let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                Refused::new(errno, format!("whoever asks cannot be reached: {e}"))
            };
            let mut peer = UnixStream::connect_addr(&address).map_err(unreachable)?;
            peer.set_read_timeout(Some(limit)).map_err(unreachable)?;
            let (still, _) = server.still()?;
            server.bring_home()?;
            asked.channel.succeed(asked.unique);
            // Nobody writes to it: it ends, or the time is over.
            let is_in_time = peer.read(&mut [0]).is_ok();
            drop(peer);
            drop(still);
            if !is_in_time {
                tracing::warn!("frozen for {} s, which is the limit", limit.as_secs());
            }
            Ok(())
        })?;
        Ok(Answered::Later)
    }

    /// Writes home what is only logged. A checkpoint in the background would do it during the copy,
    /// which could then have a home of before and a log of afterwards, and the new content nowhere.
    fn bring_home(&self) -> Result<(), Refused> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.fs.drain_some().map_err(|e| errno(&e)) {
                // A mount for reading has nothing to write.
                Ok(0) | Err(Errno::ROFS) => return Ok(()),
                Ok(_) if Instant::now() < deadline => {}
                Ok(_) => {
                    let why = "much of its cache is not home yet: run stetfs drain first";
                    return Err(Refused::new(Errno::BUSY, why));
                }
                Err(e) => return Err(Refused::new(e, format!("writing home: {e}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn what_is_asked_for() {
        let parse = |words| super::parse(OsStr::from_bytes(words));
        assert_eq!(parse(b"60 name"), Some((Duration::from_secs(60), "name")));
        for wrong in [&b"60"[..], b"0 name", b"x name", b"-1 name", b"1 \xff"] {
            assert_eq!(parse(wrong), None);
        }
    }
}
