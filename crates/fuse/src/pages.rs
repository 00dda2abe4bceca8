//! The number of pages that the kernel allows one request: `fs.fuse.max_pages_limit`, 256 by
//! default (Documentation/admin-guide/sysctl/fs.rst, since Linux 6.13; before, 256 was a constant).
//!
//! A write of 1 MiB from memory that begins inside of a page lies in 257 pages. A connection keeps
//! the limit that holds when it is mounted, so root raises it while a mount takes place. A lock on
//! the file keeps our other mounts out meanwhile.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use rustix::fs::FlockOperation;
use stetfs_format::width::must_fit_u32;

use crate::wire::largest_data;

/// The file with the limit.
const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// FUSE_MAX_MAX_PAGES of kernels that have no such file.
const CONSTANT: u32 = 256;

/// Returns the limit as it is now.
fn limit() -> u32 {
    let text = std::fs::read_to_string(LIMIT).ok();
    text.and_then(|text| text.trim().parse().ok())
        .unwrap_or(CONSTANT)
}

/// The limit, raised as far as requests of `max_request` bytes need it, if possible.
pub(crate) struct Raised {
    /// If it was raised: the limit before, and the file to restore it in.
    before: Option<(u32, File)>,
}

impl Raised {
    pub(crate) fn for_requests(max_request: u32) -> Self {
        let page = rustix::param::page_size();
        let wanted = must_fit_u32(largest_data(max_request) / page);
        let before = raise(wanted).inspect_err(|e| tracing::debug!("{LIMIT}: {e}"));
        Self {
            before: before.ok().flatten(),
        }
    }

    /// Returns the largest write(2), in bytes, that is always one request of at most `max_request`
    /// bytes on a connection that is mounted now, wherever its memory begins.
    pub(crate) fn one_request(&self, max_request: u32) -> u32 {
        let page = must_fit_u32(rustix::param::page_size());
        let pages = limit().saturating_sub(1).max(1);
        max_request.min(pages.saturating_mul(page))
    }
}

fn raise(wanted: u32) -> io::Result<Option<(u32, File)>> {
    let mut file = File::options().read(true).write(true).open(LIMIT)?;
    rustix::fs::flock(file.as_fd(), FlockOperation::LockExclusive)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let before: u32 = text.trim().parse().map_err(io::Error::other)?;
    if before >= wanted {
        return Ok(None);
    }
    set(&mut file, wanted)?;
    Ok(Some((before, file)))
}

/// Writes a limit. Each write to the file is a new number, from its beginning.
fn set(file: &mut File, limit: u32) -> io::Result<()> {
    io::Seek::rewind(file)?;
    file.write_all(format!("{limit}\n").as_bytes())
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some((before, file)) = &mut self.before
            && let Err(e) = set(file, *before)
        {
            tracing::warn!("{LIMIT} stays raised: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use stetfs_format::width::u32_as_usize;

    use super::*;

    #[test]
    fn a_request_needs_a_page_more_than_its_bytes_fill() {
        let page = rustix::param::page_size();
        assert_eq!(largest_data(1 << 20), (1 << 20) + page);
        let raised = Raised { before: None };
        let one = u32_as_usize(raised.one_request(u32::MAX));
        assert_eq!(one, (u32_as_usize(limit()) - 1) * page);
        assert_eq!(raised.one_request(4096), 4096);
    }
}
