//! What ordinary programs do on a mount, judged by what they read back, by e2fsck, and by the
//! volume after a remount.

mod support;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use support::{Volume, counted, errno};

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTEMPTY: i32 = 39;
const ENODATA: i32 = 61;

#[test]
fn files_directories_and_links() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let path = |name: &str| volume.path(name);

    assert_eq!(
        fs::metadata(&volume.dir).unwrap().ino(),
        2,
        "the root is inode 2, as on a kernel mount"
    );
    fs::create_dir_all(path("a/b/c")).unwrap();
    fs::write(path("a/b/c/file"), b"content").unwrap();
    fs::hard_link(path("a/b/c/file"), path("a/second")).unwrap();
    symlink("b/c/file", path("a/link")).unwrap();
    assert_eq!(fs::read(path("a/link")).unwrap(), b"content");
    assert_eq!(fs::metadata(path("a/second")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(path("a")).unwrap().nlink(), 3);
    assert_eq!(errno(fs::create_dir(path("a"))), EEXIST);
    assert_eq!(errno(fs::remove_dir(path("a/b"))), ENOTEMPTY);

    fs::rename(path("a/b/c/file"), path("a/moved")).unwrap();
    assert_eq!(
        errno(fs::read(path("a/b/c/file"))),
        ENOENT,
        "a name that the kernel may have cached"
    );
    assert_eq!(errno(fs::read(path("a/link"))), ENOENT);
    fs::write(path("a/other"), b"other").unwrap();
    let exchange = |flags| {
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            path("a/moved"),
            rustix::fs::CWD,
            path("a/other"),
            flags,
        )
    };
    assert_eq!(
        exchange(RenameFlags::NOREPLACE).unwrap_err().raw_os_error(),
        EEXIST
    );
    exchange(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(path("a/moved")).unwrap(), b"other");
    fs::remove_file(path("a/second")).unwrap();
    assert_eq!(fs::metadata(path("a/other")).unwrap().nlink(), 1);
    fs::remove_dir(path("a/b/c")).unwrap();
    assert_eq!(fs::metadata(path("a/b")).unwrap().nlink(), 2);

    volume.unmount(server);
    let server = volume.mount("ro");
    assert_eq!(fs::read(path("a/other")).unwrap(), b"content");
    assert_eq!(
        fs::read_link(path("a/link")).unwrap(),
        Path::new("b/c/file")
    );
    assert!(fs::write(path("new"), b"").is_err());
    volume.unmount(server);
}

#[test]
fn contents() {
    need!(support::fuse());
    let volume = Volume::new(256, &[]);
    let server = volume.mount("");
    let path = |name: &str| volume.path(name);

    // Far larger than a request, at odd offsets.
    let big: Vec<u8> = (0..20_000_001u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(path("big"), &big).unwrap();
    let mut file = File::options()
        .read(true)
        .write(true)
        .open(path("big"))
        .unwrap();
    file.write_all_at(b"patch", 12_345_677).unwrap();
    file.seek(SeekFrom::Start(12_345_670)).unwrap();
    let mut piece = [0; 20];
    file.read_exact(&mut piece).unwrap();
    assert_eq!(&piece[7..12], b"patch");
    file.set_len(12_345_679).unwrap();
    file.set_len(12_345_690).unwrap();
    drop(file);

    // A hole, appends from two handles, a truncating open.
    let sparse = File::create(path("sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 30).unwrap();
    let append = || {
        File::options()
            .append(true)
            .create(true)
            .open(path("log"))
            .unwrap()
    };
    let (mut one, mut two) = (append(), append());
    for i in 0..200 {
        let handle = if i % 2 == 0 { &mut one } else { &mut two };
        writeln!(handle, "{i}").unwrap();
    }
    fs::write(path("short"), b"something long").unwrap();
    fs::write(path("short"), b"brief").unwrap();
    drop((sparse, one, two));

    volume.unmount(server);
    let server = volume.mount("");
    let mut want = big;
    want[12_345_677..12_345_679].copy_from_slice(b"pa");
    want.truncate(12_345_679);
    want.resize(12_345_690, 0);
    assert!(
        fs::read(path("big")).unwrap() == want,
        "the large file came back different"
    );
    let sparse = File::open(path("sparse")).unwrap();
    assert_eq!(sparse.metadata().unwrap().len(), (5 << 30) + 3);
    assert!(sparse.metadata().unwrap().blocks() < 100);
    let log: Vec<u32> = fs::read_to_string(path("log"))
        .unwrap()
        .lines()
        .map(|l| l.parse().unwrap())
        .collect();
    assert!(log.into_iter().eq(0..200));
    assert_eq!(fs::read(path("short")).unwrap(), b"brief");
    drop(sparse);
    volume.unmount(server);
}

#[test]
fn holes_and_ranges() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let path = |name: &str| volume.path(name);
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path("f"))
        .unwrap();

    // Another handle has written and not synced: a seek must find that too.
    let writer = File::options().write(true).open(path("f")).unwrap();
    writer.write_all_at(&[7; 4096], 1 << 20).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)).unwrap(), 1 << 20);
    assert_eq!(
        seek(rustix::fs::SeekFrom::Hole(1 << 20)).unwrap(),
        (1 << 20) + 4096
    );
    assert!(seek(rustix::fs::SeekFrom::Data(2 << 20)).is_err());

    let fallocate = |mode, offset, len| rustix::fs::fallocate(&file, mode, offset, len);
    fallocate(FallocateFlags::KEEP_SIZE, 4 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
    fallocate(FallocateFlags::empty(), 2 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (2 << 20) + 4096);
    writer.write_all_at(&[9; 12_288], 0).unwrap();
    fallocate(
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        4096,
        4096,
    )
    .unwrap();
    fallocate(FallocateFlags::ZERO_RANGE, 8192, 100).unwrap();
    let mut start = vec![0; 12_288];
    file.read_exact_at(&mut start, 0).unwrap();
    assert!(start[..4096].iter().all(|&b| b == 9));
    assert!(start[4096..8292].iter().all(|&b| b == 0));
    assert!(start[8292..].iter().all(|&b| b == 9));

    let copy = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path("copy"))
        .unwrap();
    let (mut from, mut to) = (0, 0);
    while from < 12_288 {
        let left = 12_288 - from as usize;
        let n = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left)
            .unwrap();
        assert!(n > 0);
    }
    let mut copied = vec![1; 12_288];
    copy.read_exact_at(&mut copied, 0).unwrap();
    assert!(copied == start);
    drop((file, writer, copy));
    volume.unmount(server);
}

#[test]
fn attributes() {
    need!(support::fuse());
    let volume = Volume::new(64, &["-b", "4096"]);
    let server = volume.mount("");
    let file = volume.path("f");
    fs::write(&file, b"x").unwrap();

    fs::set_permissions(&file, fs::Permissions::from_mode(0o4640)).unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(1_000_000_000, 1),
        last_modification: time(-2, 800_000_000),
    };
    rustix::fs::utimensat(rustix::fs::CWD, &file, &times, AtFlags::empty()).unwrap();
    rustix::fs::setxattr(&file, "user.colour", b"blue", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(&file, "user.colour", b"red", XattrFlags::CREATE);
    assert_eq!(again.unwrap_err().raw_os_error(), EEXIST);
    rustix::fs::setxattr(&file, "user.colour", b"green", XattrFlags::REPLACE).unwrap();
    rustix::fs::setxattr(&file, "user.empty", b"", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&file, "user.gone", &[1; 1000], XattrFlags::empty()).unwrap();
    rustix::fs::removexattr(&file, "user.gone").unwrap();

    // The kernel asks for the time of birth by STATX, and only for that.
    let born = fs::metadata(&file).unwrap().created().unwrap();
    assert!(born <= std::time::SystemTime::now(), "{born:?}");
    let check = || {
        let meta = fs::metadata(&file).unwrap();
        assert_eq!(meta.created().unwrap(), born);
        assert_eq!(meta.mode(), 0o104_640);
        assert_eq!((meta.atime(), meta.atime_nsec()), (1_000_000_000, 1));
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 800_000_000));
        let mut value = [0; 100];
        let len = rustix::fs::getxattr(&file, "user.colour", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"green");
        assert_eq!(rustix::fs::getxattr_query(&file, "user.colour").unwrap(), 5);
        assert_eq!(
            rustix::fs::getxattr(&file, "user.gone", &mut value[..])
                .unwrap_err()
                .raw_os_error(),
            ENODATA
        );
        let mut names = [0u8; 100];
        let len = rustix::fs::listxattr(&file, &mut names[..]).unwrap();
        let mut names: Vec<_> = names[..len]
            .split(|&b| b == 0)
            .filter(|n| !n.is_empty())
            .collect();
        names.sort_unstable();
        assert_eq!(names, [&b"user.colour"[..], b"user.empty"]);
    };
    check();
    volume.unmount(server);
    let server = volume.mount("");
    check();

    let space = rustix::fs::statvfs(&volume.dir).unwrap();
    assert_eq!(space.f_namemax, 255);
    assert!(space.f_blocks * space.f_frsize > 50 << 20);
    fs::write(volume.path("ballast"), vec![1; 5 << 20]).unwrap();
    let after = rustix::fs::statvfs(&volume.dir).unwrap();
    assert!((space.f_bfree - after.f_bfree) * space.f_frsize >= 5 << 20);
    volume.unmount(server);
}

#[test]
fn a_file_outlives_its_name_while_it_is_open() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let free = || rustix::fs::statvfs(&volume.dir).unwrap().f_ffree;
    let before = free();
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(volume.path("f"))
        .unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(volume.path("f")).unwrap();
    fs::write(volume.path("g"), b"another").unwrap();
    file.sync_all().unwrap();
    let mut text = [0; 10];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    fs::remove_file(volume.path("g")).unwrap();
    support::wait_until("the inodes are free again", || free() == before);
    volume.unmount(server);
}

#[test]
fn a_directory_that_changes_while_it_is_read() {
    need!(support::fuse());
    let volume = Volume::new(64, &["-N", "20000"]);
    let server = volume.mount("");
    let dir = volume.path("d");
    fs::create_dir(&dir).unwrap();
    for i in 0..4000 {
        File::create(dir.join(format!("stays-{i}"))).unwrap();
        File::create(dir.join(format!("goes-{i}"))).unwrap();
    }
    let mut seen = std::collections::HashMap::new();
    for (i, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        *seen.entry(name).or_insert(0) += 1;
        if i % 2 == 0 && i / 2 < 4000 {
            let _ = fs::remove_file(dir.join(format!("goes-{}", i / 2)));
            File::create(dir.join(format!("comes-{i}"))).unwrap();
        }
    }
    for i in 0..4000 {
        assert_eq!(seen.get(&format!("stays-{i}")), Some(&1), "stays-{i}");
    }
    assert!(seen.values().all(|&n| n == 1), "an entry was seen twice");
    for i in 0..4000 {
        let _ = fs::remove_file(dir.join(format!("goes-{i}")));
    }
    let names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        names
            .iter()
            .filter(|n| n.to_string_lossy().starts_with("stays"))
            .count()
            == 4000
    );
    assert!(
        !names
            .iter()
            .any(|n| n.to_string_lossy().starts_with("goes"))
    );
    volume.unmount(server);
}

/// A program that lists a directory and then looks at each file sends no LOOKUP, whatever the
/// kernel knows of the files.
#[test]
fn a_listing_brings_what_the_kernel_does_not_have() {
    const FILES: u64 = 500;
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let name = |n: u64| volume.path(&format!("d/file-{n}"));
    fs::create_dir(volume.path("d")).unwrap();
    for n in 0..FILES {
        fs::write(name(n), vec![1; n as usize]).unwrap();
    }
    volume.unmount(server);
    let server = volume.mount("");
    let look = || {
        let before = counted(&volume, "/server/requests/lookup");
        let listed = fs::read_dir(volume.path("d")).unwrap();
        let listed: Vec<_> = listed.map(|entry| entry.unwrap()).collect();
        let kinds = listed.iter().all(|e| e.file_type().unwrap().is_file());
        let sizes = listed.iter().map(|e| e.metadata().unwrap().len());
        let mut sizes: Vec<u64> = sizes.collect();
        sizes.sort_unstable();
        assert!(kinds && sizes == (0..listed.len() as u64).collect::<Vec<_>>());
        let lookups = counted(&volume, "/server/requests/lookup") - before;
        // Some for the directory, and for reading the counters.
        assert!(lookups < 10, "{lookups} names were asked for");
        listed.len() as u64
    };
    assert_eq!(look(), FILES);
    // Now the kernel knows all but one.
    fs::write(name(FILES), vec![1; FILES as usize]).unwrap();
    assert_eq!(look(), FILES + 1);
    // Now other files have got inodes that the kernel knew.
    for n in 0..FILES / 2 {
        fs::remove_file(name(n)).unwrap();
    }
    for n in 0..FILES / 2 {
        fs::write(name(n), vec![2; n as usize]).unwrap();
    }
    assert_eq!(look(), FILES + 1);
    volume.unmount(server);
}

#[test]
fn memory_maps_are_written() {
    need!(support::fuse());
    need!(support::have("xfs_io"));
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let file = volume.path("mapped");
    fs::write(&file, vec![b'.'; 100_000]).unwrap();
    let script = [
        "-c",
        "mmap -rw 0 100000",
        "-c",
        "mwrite -S 0x61 50000 10000",
        "-c",
        "munmap",
    ];
    support::run(std::process::Command::new("xfs_io").args(script).arg(&file));
    let synced = [
        "-c",
        "mmap -rw 0 100000",
        "-c",
        "mwrite -S 0x62 70000 5",
        "-c",
        "msync -s",
        "-c",
        "munmap",
    ];
    support::run(std::process::Command::new("xfs_io").args(synced).arg(&file));
    volume.unmount(server);
    let server = volume.mount("ro");
    let text = fs::read(&file).unwrap();
    assert!(text[..50_000].iter().all(|&b| b == b'.'));
    assert!(text[50_000..60_000].iter().all(|&b| b == b'a'));
    assert_eq!(&text[69_999..70_006], b".bbbbb.");
    volume.unmount(server);
}

#[test]
fn strangers_are_kept_out() {
    need!(support::root_and_fuse());
    need!(support::have("setpriv"));
    let volume = Volume::new(64, &[]);
    fs::set_permissions(volume.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let server = volume.mount("");
    fs::create_dir(volume.path("private")).unwrap();
    fs::set_permissions(volume.path("private"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(volume.path("private/f"), b"secret").unwrap();
    fs::write(volume.path("public"), b"news").unwrap();
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o4777)
        .open(volume.path("suid"))
        .unwrap();
    fs::set_permissions(volume.path("suid"), fs::Permissions::from_mode(0o4777)).unwrap();
    let as_nobody = |script: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            script,
        ]);
        command.current_dir(&volume.dir).output().unwrap()
    };
    assert_eq!(as_nobody("cat public").stdout, b"news");
    assert!(!as_nobody("echo x > public").status.success());
    // The kernel has the names in its cache by now. It must check the permission all the same.
    assert!(!as_nobody("cat private/f").status.success());
    assert!(!as_nobody("touch new").status.success());
    assert!(as_nobody("echo x > suid").status.success());
    assert_eq!(
        fs::metadata(volume.path("suid")).unwrap().mode() & 0o7777,
        0o777,
        "writing takes set-user-ID away"
    );
    volume.unmount(server);
}

#[test]
fn access_control_lists() {
    need!(support::root_and_fuse());
    for program in ["setpriv", "setfacl", "getfacl"] {
        need!(support::have(program));
    }
    let volume = Volume::new(64, &[]);
    fs::set_permissions(volume.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let server = volume.mount("");
    let file = volume.path("f");
    fs::write(&file, b"text").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let readable = || {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]);
        command.arg(&file).output().unwrap().status.success()
    };
    let setfacl = |acl: &str, path: &Path| {
        support::run(
            std::process::Command::new("setfacl")
                .args(acl.split(' '))
                .arg(path),
        )
    };
    assert!(!readable());
    setfacl("-m u:65534:r", &file);
    assert_eq!(
        fs::metadata(&file).unwrap().mode() & 0o777,
        0o640,
        "the mask is the group's bits"
    );
    assert!(readable());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!readable(), "chmod has set the mask");
    setfacl("-b", &file);

    // A default ACL is inherited and overrides the umask.
    let dir = volume.path("d");
    fs::create_dir(&dir).unwrap();
    setfacl("-d -m u::rwx,g::rwx,o::-,u:65534:rw", &dir);
    let umask = ["-c", "umask 077 && mkdir $0/sub && echo > $0/file"];
    support::run(std::process::Command::new("sh").args(umask).arg(&dir));
    assert_eq!(
        fs::metadata(dir.join("file")).unwrap().mode() & 0o777,
        0o660
    );
    let getfacl = |path: &Path| {
        let out = support::run(
            std::process::Command::new("getfacl")
                .args(["-cnp"])
                .arg(path),
        );
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(getfacl(&dir.join("file")).contains("user:65534:rw-"));
    assert!(getfacl(&dir.join("sub")).contains("default:user:65534:rw-"));
    let want = (
        getfacl(&dir),
        getfacl(&dir.join("sub")),
        getfacl(&dir.join("file")),
    );
    volume.unmount(server);
    let server = volume.mount("ro");
    assert_eq!(
        (
            getfacl(&dir),
            getfacl(&dir.join("sub")),
            getfacl(&dir.join("file"))
        ),
        want
    );
    volume.unmount(server);
}

#[test]
fn many_at_once() {
    need!(support::fuse());
    for options in ["", "nowriteback,threads=3,noclone_fd"] {
        let volume = Volume::new(128, &["-N", "30000"]);
        let server = volume.mount(options);
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let volume = &volume;
                scope.spawn(move || work(volume, worker));
            }
        });
        volume.unmount(server);
        let server = volume.mount("ro");
        for worker in 0..6 {
            let names = fs::read_dir(volume.path(&format!("d{}", worker % 3))).unwrap();
            let own = names.filter(|e| {
                e.as_ref()
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with(&format!("w{worker}-"))
            });
            assert_eq!(own.count(), 100);
            let log = fs::read_to_string(volume.path(&format!("log{worker}"))).unwrap();
            assert!(log.lines().map(|l| l.parse::<u32>().unwrap()).eq(0..200));
        }
        let shared = fs::read(volume.path("shared")).unwrap();
        for (i, page) in shared.chunks(4096).enumerate() {
            assert!(page.iter().all(|&b| b == page[0]), "page {i} is a mixture");
        }
        volume.unmount(server);
    }
}

/// Creates, renames, removes, appends, writes pages that others write too, and syncs now and then.
fn work(volume: &Volume, worker: u32) {
    let dir = volume.path(&format!("d{}", worker % 3));
    let _ = fs::create_dir(&dir);
    let mut log = File::options()
        .append(true)
        .create(true)
        .open(volume.path(&format!("log{worker}")))
        .unwrap();
    let shared = volume.path("shared");
    let shared = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(shared)
        .unwrap();
    for i in 0..200u32 {
        let (draft, name) = (
            dir.join(format!("draft{worker}-{i}")),
            dir.join(format!("w{worker}-{}", i % 100)),
        );
        fs::write(&draft, vec![worker as u8; (i * 37 % 9000) as usize]).unwrap();
        fs::rename(&draft, &name).unwrap();
        writeln!(log, "{i}").unwrap();
        let page = [worker as u8 + 1; 4096];
        shared
            .write_all_at(&page, u64::from(i * 7 % 50) * 4096)
            .unwrap();
        if i % 20 == worker {
            log.sync_all().unwrap();
            shared.sync_data().unwrap();
        }
        assert_eq!(fs::metadata(&name).unwrap().len(), u64::from(i * 37 % 9000));
        fs::hard_link(&name, dir.join(format!("link{worker}"))).unwrap();
        fs::remove_file(dir.join(format!("link{worker}"))).unwrap();
    }
}

#[test]
fn the_kernel_reads_what_was_written() {
    need!(support::root_and_fuse());
    need!(std::fs::metadata("/dev/loop-control").map_err(|e| format!("/dev/loop-control: {e}")));
    let volume = Volume::new(128, &["-N", "20000"]);
    let server = volume.mount("");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    support::run(
        std::process::Command::new("cp")
            .arg("-a")
            .arg(source)
            .arg(volume.path("tree")),
    );
    for i in 0..3000 {
        File::create(volume.path(&format!("tree/{i:05}-{}", "n".repeat(40)))).unwrap();
    }
    fs::write(volume.path("tree/large"), vec![b'x'; 9_000_000]).unwrap();
    File::create(volume.path("tree/sparse"))
        .unwrap()
        .write_all_at(b"end", 1 << 33)
        .unwrap();
    let list = |dir: &Path| {
        let script = "cd \"$0\" && find tree -printf '%p %i %m %n %s %b %y %U %G %T@ %C@ %l\\n' | \
            sort && \
                      find tree -type f -size -64M -exec md5sum {} + | sort";
        let out = support::run(
            std::process::Command::new("sh")
                .args(["-c", script])
                .arg(dir),
        );
        String::from_utf8(out.stdout).unwrap()
    };
    let want = list(&volume.dir);
    assert!(want.lines().count() > 6000);
    volume.unmount(server);
    let kernel = volume.scratch.path().join("kernel");
    fs::create_dir(&kernel).unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-o", "loop,ro"])
        .arg(&volume.image)
        .arg(&kernel)
        .output();
    let mount = mount.unwrap();
    if !mount.status.success() {
        eprintln!(
            "SKIPPED: the kernel does not mount it: {}",
            String::from_utf8_lossy(&mount.stderr)
        );
        return;
    }
    let got = list(&kernel);
    support::umount(&kernel);
    for (got, want) in got.lines().zip(want.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(got.lines().count(), want.lines().count());
}

/// O_TMPFILE: one file gets its name when it is complete, one never gets a name, and one may not
/// have any.
#[test]
fn files_without_a_name() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let unnamed = |more: i32| {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).mode(0o640);
        options.custom_flags(libc::O_TMPFILE | more);
        options.open(&volume.dir).unwrap()
    };
    let name = |file: &File, name: &str| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        let (from, to) = (rustix::fs::CWD, volume.path(name));
        rustix::fs::linkat(from, path, from, to, AtFlags::SYMLINK_FOLLOW)
    };
    let free = || rustix::fs::statvfs(&volume.dir).unwrap().f_ffree;
    let before = free();
    let (file, other, never) = (unnamed(0), unnamed(0), unnamed(libc::O_EXCL));
    assert_eq!(before - free(), 3);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"complete", 0).unwrap();
    other.write_all_at(&[1; 100_000], 0).unwrap();
    assert_eq!(fs::read_dir(&volume.dir).unwrap().count(), 1, "lost+found");
    assert_eq!(name(&never, "never").unwrap_err().raw_os_error(), ENOENT);
    name(&file, "named").unwrap();
    assert_eq!(name(&other, "named").unwrap_err().raw_os_error(), EEXIST);
    assert_eq!(fs::read(volume.path("named")).unwrap(), b"complete");
    let meta = fs::metadata(volume.path("named")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o777), (1, 0o640));
    drop((file, other, never));
    support::wait_until("those without a name are freed", || free() == before - 1);
    volume.unmount(server);
    let server = volume.mount("ro");
    assert_eq!(fs::read(volume.path("named")).unwrap(), b"complete");
    volume.unmount(server);
}

/// The kernel's overlayfs keeps its upper layer on a volume. It needs whiteouts, files without a
/// name, `trusted.` attributes and types in directory entries.
#[test]
fn an_overlay_is_kept_here() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let dir = |name: &str| {
        let path = volume.scratch.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let (lower, merged) = (dir("lower"), dir("merged"));
    for name in ["removed", "renamed", "changed", "dir/inside"] {
        let path = lower.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let server = volume.mount("");
    fs::create_dir(volume.path("upper")).unwrap();
    fs::create_dir(volume.path("work")).unwrap();
    let mount = || {
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            volume.path("upper").display(),
            volume.path("work").display()
        );
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "overlay", "overlay", "-o", &layers]);
        command.arg(&merged).output().unwrap()
    };
    let unmount = || support::umount(&merged);
    let first = mount();
    if !first.status.success()
        && !fs::read_to_string("/proc/filesystems")
            .unwrap()
            .contains("overlay")
    {
        eprintln!("SKIPPED: this kernel has no overlayfs");
        volume.unmount(server);
        return;
    }
    assert!(
        first.status.success(),
        "{}",
        String::from_utf8_lossy(&first.stderr)
    );
    fs::remove_file(merged.join("removed")).unwrap();
    fs::rename(merged.join("renamed"), merged.join("renamed-to")).unwrap();
    fs::write(merged.join("changed"), b"new content").unwrap();
    fs::remove_dir_all(merged.join("dir")).unwrap();
    fs::create_dir(merged.join("dir")).unwrap();
    let list = || {
        let mut names: Vec<_> = fs::read_dir(&merged)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let seen = || {
        assert_eq!(list(), ["changed", "dir", "renamed-to"]);
        assert_eq!(fs::read(merged.join("changed")).unwrap(), b"new content");
        assert_eq!(fs::read(merged.join("renamed-to")).unwrap(), b"renamed");
        assert_eq!(fs::read_dir(merged.join("dir")).unwrap().count(), 0);
    };
    seen();
    unmount();
    for hidden in ["removed", "renamed"] {
        let meta = fs::symlink_metadata(volume.path("upper").join(hidden)).unwrap();
        assert_eq!(
            (meta.mode() & 0o170_000, meta.rdev()),
            (0o020_000, 0),
            "{hidden}"
        );
    }
    volume.unmount(server);
    let server = volume.mount("");
    let again = mount();
    assert!(
        again.status.success(),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
    seen();
    unmount();
    volume.unmount(server);
}

/// Files that have lost their names and are still in use: a working directory, an open pipe, a
/// socket's place.
#[test]
fn what_is_removed_and_still_known() {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let known = |name: &str| {
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH);
        options.open(volume.path(name)).unwrap()
    };
    fs::create_dir(volume.path("dir")).unwrap();
    fs::create_dir(volume.path("replaced")).unwrap();
    fs::create_dir(volume.path("new")).unwrap();
    let file_type = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        volume.path("pipe"),
        file_type,
        0o600.into(),
        0,
    )
    .unwrap();
    let (dir, replaced, pipe) = (known("dir"), known("replaced"), known("pipe"));
    fs::remove_dir(volume.path("dir")).unwrap();
    fs::rename(volume.path("new"), volume.path("replaced")).unwrap();
    fs::remove_file(volume.path("pipe")).unwrap();
    // New files would get their inode numbers first.
    for i in 0..20 {
        fs::create_dir(volume.path(&format!("d{i}"))).unwrap();
    }
    for removed in [&dir, &replaced] {
        let meta = removed.metadata().unwrap();
        assert!(meta.is_dir() && meta.nlink() == 0);
    }
    assert!(pipe.metadata().unwrap().file_type().is_fifo());
    let inside = format!("/proc/self/fd/{}/f", std::os::fd::AsRawFd::as_raw_fd(&dir));
    assert_eq!(errno(fs::File::create(inside)), libc::ENOENT);
    let free = || rustix::fs::statvfs(&volume.dir).unwrap().f_ffree;
    let before = free();
    drop((dir, replaced, pipe));
    support::wait_until("they are freed", || {
        // The kernel sends FORGET along with other requests.
        let _ = fs::metadata(volume.path(&format!("nothing-{}", free())));
        free() == before + 3
    });
    // A removed directory that is held until shortly before the mount ends is freed too.
    let last = known("d0");
    fs::remove_dir(volume.path("d0")).unwrap();
    drop(last);
    volume.unmount(server);
}
