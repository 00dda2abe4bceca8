//! `stetfs upgrade`: a mount's server becomes this program.

use rustix::io::Errno;
use stetfs_fuse::mountinfo::{self, MountEntry};

use crate::args::Upgrade;
use crate::below::front;
use crate::failure::{Explain, Failure, Result};
use crate::{answer, mounts, output};

pub(crate) fn run(args: &Upgrade) -> Result<()> {
    let dir = mounts::resolved(&args.dir);
    let shown = args.dir.display();
    if front::exported_below(&dir).is_some() {
        return Err(Failure::new(format!(
            "{shown}: the kernel serves its files, and the device below cannot be handed over"
        ))
        .advise(format!(
            "unmount it, and mount it again: stetfs umount {shown}"
        )));
    }
    let mount = mountinfo::mounted_on(&dir).ok().flatten();
    if mount.filter(MountEntry::is_stetfs).is_none() {
        return Err(stetfs_fuse::MountError::NotMounted(dir).into());
    }
    let before = answer::of_server(&args.dir)?;
    let ours = stetfs_fuse::upgrade::VERSION;
    match before["upgrade"]["version"].as_u64() {
        Some(theirs) if theirs == u64::from(ours) => {}
        Some(theirs) => {
            return Err(Failure::new(format!(
                "{shown}: its server (stetfs {}) hands over version {theirs}, and this program \
                    takes over version {ours}",
                before["version"].as_str().unwrap_or("of another version")
            ))
            .advise("unmount it, and mount it again"));
        }
        None => {
            return Err(Failure::new(format!(
                "{shown}: this mount cannot be handed over to another program"
            ))
            .advise("unmount it, and mount it again; stetfs upgrade --help says what forbids it"));
        }
    }
    let program = std::env::current_exe().during(|| "this program's own file".to_owned())?;
    stetfs_fuse::upgrade(&dir, &program).map_err(|e| refused(args, e))?;
    let now = answer::of_server(&args.dir)?;
    output::line(format_args!(
        "{shown}: served by stetfs {} now (process {}), after a pause of {} ms",
        now["version"].as_str().unwrap_or_default(),
        now["pid"],
        now["upgrade"]["pause_ms"]
    ))
}

/// Describes a failure: the server knows why, if there is one.
fn refused(args: &Upgrade, e: std::io::Error) -> Failure {
    let shown = args.dir.display();
    let errno = Errno::from_io_error(&e);
    if errno == Some(Errno::PERM) {
        return Failure::new(format!(
            "{shown}: you may not choose the program that serves it"
        ))
        .advise("root may, or the user who has mounted it, and not from within a container");
    }
    if matches!(errno, Some(Errno::NOTCONN | Errno::CONNABORTED)) {
        return Failure::new(format!(
            "{shown}: this program has failed to take over, and the mount has ended; everything \
                written before is in the image"
        ))
        .advise("mount it again to recover; the system's log says what failed");
    }
    let why = answer::refusal(&args.dir).unwrap_or_else(|| e.to_string());
    Failure::new(format!("{shown}: not handed over: {why}"))
        .advise("the mount goes on as it was; try again later")
}
