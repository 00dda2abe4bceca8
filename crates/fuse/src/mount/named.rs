//! A mount of a block device that shows the image's name as its source, not the device's.
//!
//! df(1), mount(8) and /proc/mounts show as source the path by which the kernel found the device.
//! The name of a loop device says nothing to their readers. So a thread takes a mount namespace of
//! its own, bind-mounts the device's node over the image there, and makes the mount by the image's
//! path. Then the mount moves into everybody's namespace, in which nothing covers the image. Needs
//! the system calls of Linux 5.2.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_bind,
    mount_change, move_mount,
};
use stetfs_sys::namespace::unshare_mounts;

use super::device::{open_device, selinux_contexts};
use super::error::MountError;
use crate::options::{Allow, FuseOptions};

/// Mounts `device` on `dir`, with `image` as its source. Returns the server's end.
///
/// # Errors
/// The kernel refuses a step; nothing is mounted then.
pub(super) fn mount(
    image: &Path,
    device: &Path,
    dir: &Path,
    options: &FuseOptions,
) -> Result<OwnedFd, MountError> {
    let fuse = open_device()?;
    let failed = |source| MountError::Mount {
        image: image.to_owned(),
        dir: dir.to_owned(),
        source,
    };
    let detached = thread::scope(|scope| {
        let make = || make_detached(image, device, &fuse, options);
        let made = thread::Builder::new().spawn_scoped(scope, make)?;
        made.join().map_err(|_| io::Error::other("a thread died"))?
    });
    let detached = detached.map_err(failed)?;
    let cwd = rustix::fs::CWD;
    let put = move_mount(
        &detached,
        "",
        cwd,
        dir,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    );
    put.map_err(|e| failed(e.into()))?;
    Ok(fuse.into())
}

/// Makes the mount, which is not attached anywhere yet. Changes the thread's mount namespace, so
/// the thread must end afterwards.
fn make_detached(
    image: &Path,
    device: &Path,
    fuse: impl AsFd,
    options: &FuseOptions,
) -> io::Result<OwnedFd> {
    unshare_mounts(false)?;
    let of_its_own = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", of_its_own)?;
    mount_bind(device, image)?;
    let fs = fsopen("fuseblk", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", image)?;
    let numbers = [
        ("fd", fuse.as_fd().as_raw_fd().to_string()),
        ("blksize", rustix::param::page_size().to_string()),
    ];
    let words = [
        ("subtype", "stetfs"),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
    ];
    let numbers = numbers.iter().map(|(key, value)| (*key, value.as_str()));
    let contexts = selinux_contexts(options).iter();
    let contexts = contexts.filter_map(|context| context.split_once('='));
    for (key, value) in words.into_iter().chain(numbers).chain(contexts) {
        fsconfig_set_string(&fs, key, value.trim_matches('"'))?;
    }
    let flags = [
        ("default_permissions", !options.fakeroot),
        ("allow_other", options.allow != Allow::Owner),
        ("ro", options.read_only),
        ("sync", options.sync),
        ("dirsync", options.dirsync),
    ];
    for (key, _) in flags.iter().filter(|(_, is_set)| *is_set) {
        fsconfig_set_flag(&fs, *key)?;
    }
    fsconfig_create(&fs)?;
    Ok(fsmount(
        &fs,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes(options),
    )?)
}

/// Returns what the kernel checks at this mount.
fn attributes(options: &FuseOptions) -> MountAttrFlags {
    let flags = [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (options.dev == Some(false), MountAttrFlags::MOUNT_ATTR_NODEV),
        (
            options.suid == Some(false),
            MountAttrFlags::MOUNT_ATTR_NOSUID,
        ),
        (!options.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (options.noatime, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (options.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set);
    set.map(|(_, flag)| flag).collect()
}
