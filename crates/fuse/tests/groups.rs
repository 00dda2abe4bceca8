//! Groups of writes through a mount: F2FS's ioctls for atomic writes.

mod support;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::fs::{Advice, OFlags, fadvise, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use stetfs_sys::file_ioctl::{
    abort_atomic_write, begin_group, commit_atomic_write, has_atomic_writes, join_group,
    start_atomic_write,
};
use support::{Volume, open, run};

fn read(file: &File, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    let n = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

const PAGE: usize = 4096;

/// Returns pages, each filled with one of these bytes.
fn pages(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [*byte; PAGE]).collect()
}

/// Overwrites pages 0 and 3, and writes page 5, behind the end.
fn write_some(file: &File, byte: u8) {
    for page in [0, 3, 5] {
        file.write_all_at(&pages(&[byte]), page * PAGE as u64)
            .unwrap();
    }
}

#[test]
fn a_group_is_its_owners_until_it_is_committed() {
    need!(support::root_and_fuse());
    for options in ["data=ordered", "data=journal,nowriteback", "scheme=stet"] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount(options);
        let path = volume.marked().join("file");
        let (owner, other) = (open(&path), open(&path));
        owner.write_all_at(&pages(&[1; 4]), 0).unwrap();
        // A reader through the page cache.
        let reader = File::open(&path).unwrap();
        let seen = |file: &File| read(file, 4 * PAGE);
        assert_eq!(seen(&reader), pages(&[1; 4]));
        assert!(has_atomic_writes(&owner) && !has_atomic_writes(&reader));
        start_atomic_write(&owner).unwrap();
        write_some(&owner, 2);
        for file in [&reader, &other] {
            assert!(seen(file) == pages(&[1; 4]), "{options}: seen by others");
        }
        assert!(seen(&owner) == pages(&[2, 1, 1, 2]), "{options}: its own");
        commit_atomic_write(&owner).unwrap();
        for file in [&owner, &other, &reader] {
            assert!(
                read(file, 6 * PAGE) == pages(&[2, 1, 1, 2, 0, 2]),
                "{options}: committed"
            );
        }
        // Committed writes are durable. Others are dropped: by ABORT, by a close, by a kill.
        start_atomic_write(&owner).unwrap();
        write_some(&owner, 3);
        abort_atomic_write(&owner).unwrap();
        start_atomic_write(&other).unwrap();
        write_some(&other, 4);
        drop(other);
        assert!(
            read(&owner, 6 * PAGE) == pages(&[2, 1, 1, 2, 0, 2]),
            "{options}"
        );
        // Of two groups at once the second commit fails, and can be tried again.
        let other = open(&path);
        for file in [&owner, &other] {
            start_atomic_write(file).unwrap();
        }
        write_some(&owner, 5);
        write_some(&other, 6);
        commit_atomic_write(&owner).unwrap();
        let told = commit_atomic_write(&other).unwrap_err();
        assert_eq!(told, Errno::BUSY, "{options}");
        abort_atomic_write(&other).unwrap();
        start_atomic_write(&other).unwrap();
        write_some(&other, 7);
        commit_atomic_write(&other).unwrap();
        start_atomic_write(&owner).unwrap();
        write_some(&owner, 8);
        server.signal(Signal::KILL);
        drop((owner, other, reader));
        server.crash(&volume.dir);
        let server = volume.mount(options);
        assert!(
            fs::read(&path).unwrap() == pages(&[7, 1, 1, 7, 0, 7]),
            "{options}: after a crash"
        );
        volume.unmount(server);
    }
}

#[test]
fn files_that_can_have_none_say_so() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("data=ordered");
    let (plain, dir) = (volume.path("plain"), volume.marked());
    let file = open(&plain);
    assert!(!has_atomic_writes(&file));
    assert_eq!(start_atomic_write(&file), Err(Errno::NOTSUP));
    // Without a group, writes take effect at once.
    file.write_all_at(b"x", 0).unwrap();
    commit_atomic_write(&file).unwrap();
    abort_atomic_write(&file).unwrap();
    assert_eq!(fs::read(&plain).unwrap(), b"x");
    let path = dir.join("file");
    drop(open(&path));
    let reader = File::open(&path).unwrap();
    assert_eq!(start_atomic_write(&reader), Err(Errno::BADF));
    drop((file, reader));
    volume.unmount(server);
    // Where data is journaled, O_DIRECT suffices.
    let server = volume.mount("data=journal");
    let file = open(&plain);
    assert!(!has_atomic_writes(&file), "its pages are everybody's");
    // It does not if it is set later: some pages may be in the cache.
    fcntl_setfl(&file, OFlags::DIRECT).unwrap();
    assert!(!has_atomic_writes(&file), "some of its pages are");
    drop(file);
    let direct = direct(&plain);
    support::wait_until("the file is closed", || has_atomic_writes(&direct));
    drop(direct);
    volume.unmount(server);
}

/// Opens a file with O_DIRECT.
fn direct(path: &Path) -> File {
    let mut how = File::options();
    how.read(true).write(true).custom_flags(libc::O_DIRECT);
    how.open(path).unwrap()
}

/// Begins a group when nobody writes the file through the cache any more: the server hears of a
/// close a little later.
fn start_when_closed(file: &File) {
    support::wait_until("its writers have closed it", || {
        match start_atomic_write(file) {
            Err(e) => assert_eq!(e, Errno::BUSY),
            Ok(()) => return true,
        }
        false
    });
}

/// A file that clears O_DIRECT in a group still goes past the cache. (Before the fix it wrote to
/// the cache, which everybody sees.)
#[test]
fn a_group_by_o_direct_stays_past_the_cache() {
    need!(support::root_and_fuse());
    for options in ["data=journal", "scheme=stet,nowriteback"] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount(options);
        let path = volume.path("plain");
        fs::write(&path, pages(&[1])).unwrap();
        let owner = direct(&path);
        start_when_closed(&owner);
        fcntl_setfl(&owner, OFlags::empty()).unwrap();
        owner.write_all_at(&pages(&[2]), 0).unwrap();
        assert!(fs::read(&path).unwrap() == pages(&[1]), "{options}");
        assert!(read(&owner, PAGE) == pages(&[2]), "{options}: its own");
        abort_atomic_write(&owner).unwrap();
        for file in [&owner, &open(&path)] {
            assert!(read(file, PAGE) == pages(&[1]), "{options}: aborted");
        }
        drop(owner);
        volume.unmount(server);
    }
}

/// The kernel writes whole pages back, as they were when somebody wrote to them. (Before the fix,
/// what was committed meanwhile was lost.)
#[test]
fn a_file_has_groups_or_writers_through_the_cache() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("data=journal");
    let path = volume.path("plain");
    fs::write(&path, pages(&[1])).unwrap();
    let (owner, writer) = (direct(&path), open(&path));
    writer.write_all_at(b"late", 0).unwrap();
    assert!(!has_atomic_writes(&owner));
    assert_eq!(start_atomic_write(&owner), Err(Errno::BUSY));
    drop(writer);
    start_when_closed(&owner);
    // Opens during a group have no cache.
    owner.write_all_at(&pages(&[2]), 0).unwrap();
    let writer = open(&path);
    writer.write_all_at(b"late", 8).unwrap();
    commit_atomic_write(&owner).unwrap();
    writer.write_all_at(b"and later", 16).unwrap();
    writer.sync_all().unwrap();
    let mut wanted = pages(&[2]);
    wanted[16..25].copy_from_slice(b"and later");
    assert!(fs::read(&path).unwrap() == wanted);
    // A file that has joined may be closed, and its group goes on.
    let first = volume.marked().join("first");
    let first = open(&first);
    let name = begin_group(&first).unwrap();
    drop(writer);
    join_group(&owner, name).unwrap();
    owner.write_all_at(&pages(&[3]), 0).unwrap();
    drop(owner);
    let writer = open(&path);
    writer.write_all_at(b"late", 0).unwrap();
    commit_atomic_write(&first).unwrap();
    writer.sync_all().unwrap();
    assert!(fs::read(&path).unwrap() == pages(&[3]));
    // Afterwards writers have the cache again.
    drop((first, writer));
    let (owner, writer) = (direct(&path), open(&path));
    writer.write_all_at(b"late", 0).unwrap();
    assert_eq!(start_atomic_write(&owner), Err(Errno::BUSY));
    drop((owner, writer));
    volume.unmount(server);
}

/// close(2) returns before the server hears of it: the kernel sends it after pages of any file that
/// it is writing back. (Before the fix, a group that began meanwhile failed with EBUSY.)
#[test]
fn a_close_counts_when_it_has_returned() {
    need!(support::root_and_fuse());
    for options in ["data=journal", "data=journal,threads=1", "scheme=stet"] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount(options);
        let path = volume.path("plain");
        fs::write(&path, pages(&[1; 16])).unwrap();
        let first = open(&volume.marked().join("first"));
        let ways: [&dyn Fn(&File); 3] = [
            &|file| start_atomic_write(file).unwrap(),
            &|file| assert!(has_atomic_writes(file)),
            &|file| {
                join_group(file, begin_group(&first).unwrap()).unwrap();
                abort_atomic_write(&first).unwrap();
            },
        ];
        let other = open(&volume.path("other"));
        for way in ways.iter().cycle().take(12) {
            let (owner, writer) = (direct(&path), open(&path));
            // Send so many requests that the kernel queues them.
            for page in 0..300 {
                other
                    .write_all_at(b"dirty", 2 * page * PAGE as u64)
                    .unwrap();
            }
            fadvise(&other, 0, None, Advice::DontNeed).unwrap();
            drop(writer);
            way(&owner);
            // Then the next writer has the cache again.
            abort_atomic_write(&owner).unwrap();
        }
        drop((first, other));
        volume.unmount(server);
    }
}

/// One worker answers all of this: a request that waits for a close does not keep it.
#[test]
fn a_group_waits_beside_other_requests() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("data=journal,threads=1");
    let path = volume.path("plain");
    let writer = open(&path);
    let owner = direct(&path);
    let has_come = || {
        let stats = stetfs_fuse::query_stats(&volume.dir).unwrap();
        let stats: Value = serde_json::from_str(&stats).unwrap();
        stats["server"]["requests"]["ioctl"] == 1
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| start_atomic_write(&owner));
        support::wait_until("the request comes", has_come);
        writer.write_all_at(b"in time", 0).unwrap();
        drop(writer);
        waiting.join().unwrap().unwrap();
    });
    assert!(read(&owner, 7) == b"in time");
    drop(owner);
    volume.unmount(server);
}

/// Groups end when a file's mark is removed. SQLite asks for that and goes on with its journal.
#[test]
fn a_mark_that_goes_takes_groups_along() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("data=ordered");
    let path = volume.marked().join("file");
    let chattr = |mark: &str| drop(run(Command::new("chattr").arg(mark).arg(&path)));
    let file = open(&path);
    start_atomic_write(&file).unwrap();
    file.write_all_at(&pages(&[1]), 0).unwrap();
    chattr("-j");
    assert!(!has_atomic_writes(&file));
    assert_eq!(commit_atomic_write(&file), Err(Errno::NOTSUP));
    abort_atomic_write(&file).unwrap();
    assert_eq!(start_atomic_write(&file), Err(Errno::NOTSUP));
    file.write_all_at(&pages(&[2]), 0).unwrap();
    assert!(fs::read(&path).unwrap() == pages(&[2]));
    // An open now has the cache, so nobody can have a group until it is closed.
    let cached = open(&path);
    cached.write_all_at(b"late", 0).unwrap();
    chattr("+j");
    assert_eq!(start_atomic_write(&cached), Err(Errno::NOTSUP));
    assert_eq!(start_atomic_write(&file), Err(Errno::BUSY));
    drop(cached);
    start_when_closed(&file);
    file.write_all_at(&pages(&[3]), 0).unwrap();
    commit_atomic_write(&file).unwrap();
    assert!(fs::read(&path).unwrap() == pages(&[3]));
    drop(file);
    volume.unmount(server);
}

#[test]
fn a_write_beside_a_commit_is_in_the_group_or_behind_it() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let path = volume.marked().join("file");
    let file = open(&path);
    let (rounds, length) = (3, 2048);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for (round, page) in (1..=rounds).flat_map(|r| (0..length).map(move |p| (r, p))) {
                let write = || file.write_all_at(&pages(&[round]), page * PAGE as u64);
                // The group may have its largest size, until its commit.
                let is_too_big = |e: &io::Error| e.raw_os_error() == Some(libc::EFBIG);
                let mut written = write();
                while written.as_ref().is_err_and(is_too_big) {
                    written = write();
                }
                written.unwrap();
            }
        });
        while !writer.is_finished() {
            start_atomic_write(&file).unwrap();
            thread::yield_now();
            commit_atomic_write(&file).unwrap();
        }
    });
    let found = read(&file, PAGE * length as usize);
    for (page, bytes) in found.chunks(PAGE).enumerate() {
        assert!(bytes == pages(&[rounds]), "page {page} has {}", bytes[0]);
    }
    drop(file);
    volume.unmount(server);
}

/// Makes files `a` and `b`, each with one page of ones.
fn pair(volume: &Volume) -> [PathBuf; 2] {
    let dir = volume.marked();
    ["a", "b"].map(|name| {
        let path = dir.join(name);
        fs::write(&path, pages(&[1])).unwrap();
        path
    })
}

fn read_all(paths: &[PathBuf; 2]) -> [Vec<u8>; 2] {
    paths.each_ref().map(|path| fs::read(path).unwrap())
}

#[test]
fn a_group_of_several_files_happens_at_once() {
    need!(support::root_and_fuse());
    for options in ["", "scheme=stet,nowriteback"] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount(options);
        let paths = pair(&volume);
        let [a, b] = paths.each_ref().map(|path| open(path));
        let stage = |byte| {
            join_group(&b, begin_group(&a).unwrap()).unwrap();
            for file in [&a, &b] {
                file.write_all_at(&pages(&[byte, byte]), 0).unwrap();
            }
        };
        let seen = |bytes: &[u8]| assert!(read_all(&paths).iter().all(|f| *f == pages(bytes)));
        stage(2);
        assert!(read(&b, 3 * PAGE) == pages(&[2, 2]), "{options}: its own");
        for path in &paths {
            assert_eq!(fs::read(path).unwrap()[..PAGE], pages(&[1]), "{options}");
        }
        // Each of the files can commit it.
        commit_atomic_write(&b).unwrap();
        seen(&[2, 2]);
        // No file is in a group now.
        a.write_all_at(&pages(&[1]), 0).unwrap();
        a.write_all_at(&pages(&[2]), 0).unwrap();
        seen(&[2, 2]);
        let joined = open(&paths[1]);
        join_group(&joined, begin_group(&a).unwrap()).unwrap();
        joined.write_all_at(&pages(&[3, 3]), 0).unwrap();
        a.write_all_at(&pages(&[3, 3]), 0).unwrap();
        // Now the kernel has pages of a file that nobody will have open.
        seen(&[2, 2]);
        drop((joined, b));
        commit_atomic_write(&a).unwrap();
        seen(&[3, 3]);
        join_group(open(&paths[1]), begin_group(&a).unwrap()).unwrap();
        a.write_all_at(&pages(&[4]), 0).unwrap();
        server.signal(Signal::KILL);
        drop(a);
        server.crash(&volume.dir);
        let server = volume.mount(options);
        seen(&[3, 3]);
        volume.unmount(server);
    }
}

/// Everybody sees the same page of a memory map, whoever has mapped the file.
#[test]
fn a_map_does_not_show_what_is_staged() {
    need!(support::root_and_fuse());
    need!(support::have("python3"));
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let [path, _] = pair(&volume);
    let script = "\
import fcntl, mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(f, 0xf501)
os.pwrite(f, b'\\2' * 4096, 0)
assert os.pread(f, 1, 0) == b'\\2', 'its own'
assert mmap.mmap(f, 4096)[0] == 1, 'a map'
fcntl.ioctl(f, 0xf505)
";
    run(Command::new("python3").args(["-c", script]).arg(&path));
    assert!(fs::read(&path).unwrap() == pages(&[1]));
    volume.unmount(server);
}

#[test]
fn who_was_in_an_aborted_group_hears_of_it() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let paths = pair(&volume);
    let [a, b] = paths.each_ref().map(|path| open(path));
    let was = read_all(&paths);
    // Abort by closing the file that began it.
    let first = open(&paths[0]);
    let name = begin_group(&first).unwrap();
    assert_eq!(begin_group(&first), Ok(name), "it goes on");
    join_group(&b, name).unwrap();
    join_group(&a, name).unwrap();
    assert_eq!(join_group(&b, name), Ok(()), "it is in it");
    let other = begin_group(open(&paths[0])).unwrap();
    assert_ne!(other, name);
    for file in [&first, &a, &b] {
        file.write_all_at(&pages(&[2]), 0).unwrap();
    }
    drop(first);
    support::wait_until("the group ends", || b.write_all_at(b"x", 0).is_err());
    assert_eq!(support::errno(b.write_all_at(b"x", 0)), libc::ECANCELED);
    assert_eq!(commit_atomic_write(&b), Err(Errno::CANCELED));
    assert_eq!(join_group(&b, name), Err(Errno::NOENT));
    // Abort through a file that joined. A file that begins another group gets no error.
    let name = begin_group(&a).unwrap();
    join_group(&b, name).unwrap();
    b.write_all_at(&pages(&[3]), 0).unwrap();
    abort_atomic_write(&b).unwrap();
    assert_eq!(commit_atomic_write(&a), Err(Errno::CANCELED));
    assert!(read_all(&paths) == was);
    // Refused: a file in another group, an unknown name, a file that can have no group.
    let name = begin_group(&a).unwrap();
    begin_group(&b).unwrap();
    assert_eq!(join_group(&b, name), Err(Errno::BUSY));
    let more = open(&paths[1]);
    assert_eq!(join_group(&more, [7; 16]), Err(Errno::NOENT));
    assert_eq!(
        join_group(open(&volume.path("plain")), name),
        Err(Errno::NOTSUP)
    );
    drop((a, b, more));
    volume.unmount(server);
}

/// The example of the documentation, built as a user would.
#[test]
fn the_header_says_what_the_server_does() {
    need!(support::root_and_fuse());
    need!(support::have("cc"));
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let paths = pair(&volume);
    let ffi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ffi");
    let program = volume.scratch.path().join("two-files");
    let mut build = Command::new("cc");
    build.args(["-Wall", "-Wextra", "-Werror", "-I"]);
    build.arg(ffi.join("include")).arg("-o").arg(&program);
    run(build.arg(ffi.join("examples/two-files.c")));
    let two_files = |words: &str| {
        let mut command = Command::new(&program);
        command.args(&paths).arg(words).status().unwrap()
    };
    assert!(two_files("both").success());
    let [a, b] = read_all(&paths);
    assert!(a.starts_with(b"both") && b.starts_with(b"both"));
    fs::remove_file(&paths[1]).unwrap();
    fs::write(volume.path("plain"), "plain").unwrap();
    fs::hard_link(volume.path("plain"), &paths[1]).unwrap();
    assert!(!two_files("none").success(), "one can have no group");
    assert!(fs::read(&paths[0]).unwrap().starts_with(b"both"));
    assert_eq!(fs::read(&paths[1]).unwrap(), b"plain");
    volume.unmount(server);
}

#[test]
fn an_append_goes_behind_what_is_staged() {
    need!(support::root_and_fuse());
    for options in ["nowriteback", ""] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount(options);
        let path = volume.marked().join("file");
        fs::write(&path, b"begin").unwrap();
        let log = File::options().append(true).open(&path).unwrap();
        start_atomic_write(&log).unwrap();
        for word in ["one", "two"] {
            io::Write::write_all(&mut &log, word.as_bytes()).unwrap();
        }
        let seen = fs::read(&path).unwrap();
        let (begin, rest) = seen.split_at(5);
        assert_eq!(begin, b"begin");
        // With a writeback cache the kernel believes its own sizes.
        let shown = if options.is_empty() { 6 } else { 0 };
        assert_eq!(rest, vec![0; shown], "{options}");
        commit_atomic_write(&log).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"beginonetwo", "{options}");
        drop(log);
        volume.unmount(server);
    }
}

/// With a writeback cache the kernel learns the size of a regular file only from its own calls.
/// After an abort it keeps the size that the group would have given, until the file is truncated or
/// forgotten. The volume has the right size.
#[test]
fn a_cut_tells_the_kernel_of_an_abort() {
    need!(support::root_and_fuse());
    for (options, mark) in [("", true), ("data=journal", false), ("nowriteback", true)] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount(options);
        let dir = if mark {
            volume.marked()
        } else {
            volume.dir.clone()
        };
        let path = dir.join("file");
        fs::write(&path, b"begin").unwrap();
        let file = if mark { open(&path) } else { direct(&path) };
        let shown = || fs::metadata(&path).unwrap().len();
        let stage = || {
            start_when_closed(&file);
            file.write_all_at(b"more", shown()).unwrap();
            abort_atomic_write(&file).unwrap();
        };
        stage();
        let is_told = options == "nowriteback";
        assert_eq!(shown(), if is_told { 5 } else { 9 }, "{options}");
        file.set_len(5).unwrap();
        assert_eq!(shown(), 5, "{options}");
        let log = File::options().append(true).open(&path).unwrap();
        io::Write::write_all(&mut &log, b"end").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"beginend", "{options}");
        drop(log);
        stage();
        drop(file);
        if is_told || support::kernel() >= (6, 18) {
            support::wait_until("the kernel has forgotten it", || shown() == 8);
        }
        volume.unmount(server);
    }
}
