//! `stetfs umount` and the helper `umount.fuse.stetfs`.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::args::{Umount, UmountHelper};
use crate::below::front;
use crate::failure::{Explain, Failure, Result};
use crate::info::VolumeInfo;
use crate::{answer, drain, mounts};

/// How often to try the lock.
const POLL: Duration = Duration::from_millis(10);

/// Seconds that umount(8)'s helper waits: as long as a slow device may need for a full cache.
const HELPER_TIMEOUT: u64 = 600;

pub(crate) fn run(args: &Umount) -> Result<()> {
    let timeout = Duration::from_secs(args.timeout);
    if let Some(file) = front::exported_below(&args.dir) {
        return front::umount(&args.dir, &file, args.lazy, timeout);
    }
    if !args.lazy {
        answer::wait(&args.dir, timeout)?;
    }
    let left = if args.lazy {
        // A lazy unmount asks the server nothing, since it may not answer.
        None
    } else {
        drain::Left::of(&args.dir).ok().flatten()
    };
    let is_kept = left.is_some_and(|left| left.is_kept);
    if let Some(left) = left.filter(|left| !left.is_kept) {
        // Drain first, so that the user sees the progress and does not wait with the mount point
        // gone. The unmount writes the rest; it writes everything for users who may not give the
        // server commands.
        let _ = drain::mounted(&args.dir, left);
    }
    let unmounted = stetfs_fuse::umount(&args.dir, args.lazy, timeout)
        .or_advise(|| format!("see what is mounted there: findmnt {}", args.dir.display()))?;
    let image = &unmounted.image;
    if unmounted.was_dead {
        eprintln!(
            "stetfs: the server of {} had died; the mount point is released",
            image.display()
        );
        return check_clean(image);
    }
    if let Some(place) = &unmounted.still {
        let place = place.as_ref().map_or_else(
            || "elsewhere (in another mount namespace, or files are open)".to_owned(),
            |dir| format!("on {}", dir.display()),
        );
        eprintln!("stetfs: {} is still mounted {place}", image.display());
        return Ok(());
    }
    if args.lazy && !unmounted.finished {
        return Ok(());
    }
    wait_released(image, timeout)?;
    if let Some(why) = &unmounted.stopped {
        return Err(stopped(image, why));
    }
    if is_kept {
        let shown = image.display();
        eprintln!(
            "stetfs: the newest content of {shown} stays in its cache (keep-cache): mount it \
                again, or: stetfs drain {shown}"
        );
        return Ok(());
    }
    check_clean(image)
}

/// Runs for umount(8), which has found the mount point.
pub(crate) fn run_helper(args: &UmountHelper) -> Result<()> {
    run(&Umount {
        dir: args.dir.clone(),
        lazy: args.lazy,
        timeout: HELPER_TIMEOUT,
    })
}

/// Waits until nobody holds the image. It cannot wait for the server's process, which may be
/// invisible from here (another PID namespace).
fn wait_released(image: &Path, timeout: Duration) -> Result<()> {
    let started = Instant::now();
    let shown = image.display();
    loop {
        match mounts::is_locked(image) {
            Ok(false) => return Ok(()),
            Ok(true) if started.elapsed() >= timeout => {
                return Err(Failure::new(format!(
                    "unmounted, but {shown} is still in use after {} s",
                    timeout.as_secs()
                ))
                .advise(format!(
                    "its server is still writing, or it was mounted again; see: fuser -v {shown}"
                )));
            }
            Ok(true) => sleep(POLL),
            // The image is somebody else's or is gone: nothing more can be found out about it.
            Err(Errno::ACCESS | Errno::PERM | Errno::NOENT) => return Ok(()),
            Err(e) => return Err(Failure::from(e).context(shown)),
        }
    }
}

/// Explains that the volume had stopped before the unmount, which is the first chance to tell
/// anybody.
fn stopped(image: &Path, why: &str) -> Failure {
    let shown = image.display().to_string();
    // The kernel adds this to the path of a deleted file behind a loop device.
    let shown = shown.strip_suffix(" (deleted)").unwrap_or(&shown);
    if !image.exists() {
        return Failure::new(format!(
            "unmounted, but {shown} was removed while it was mounted: its content is lost"
        ));
    }
    Failure::new(format!(
        "unmounted, but {shown} had stopped, and what was written since then is lost: {why}"
    ))
    .advise(format!(
        "the next mount recovers what was confirmed, or: stetfs fsck {shown}"
    ))
}

/// Fails if the image needs recovery.
fn check_clean(image: &Path) -> Result<()> {
    let Ok(volume) = VolumeInfo::read(image) else {
        return Ok(());
    };
    if volume.needs_recovery {
        let shown = image.display();
        return Err(Failure::new(format!(
            "unmounted, but the journal of {shown} is still to be recovered"
        ))
        .advise(format!(
            "what was confirmed is in it: the next mount recovers it, or: stetfs fsck {shown}"
        )));
    }
    Ok(())
}
