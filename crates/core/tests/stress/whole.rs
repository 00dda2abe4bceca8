//! A write that fits one transaction survives whole or not at all, at whatever moment of it another
//! caller begins a commit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use stetfs::{Caller, Fs, MountOptions, OpenFlags, Schedule, Scheduled};
use stetfs_format::InodeNo;
use stetfs_media::RamDev;

use crate::volume::{image, mount};

const BLOCK: usize = 1024;
const BLOCKS: usize = 16;

/// Lets a commit begin when a thread takes a lock for the `left`-th time. Gives the commit time to
/// wait for this thread, if it has to.
#[derive(Debug)]
struct CommitAt {
    left: AtomicU32,
    begin: Sender<()>,
    done: Mutex<Receiver<()>>,
}

impl Schedule for CommitAt {
    fn pass(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.begin.send(()).unwrap();
            let _ = self
                .done
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_millis(10));
        }
    }

    fn wait(&self) {
        thread::yield_now();
    }
}

/// Makes a file with every other block, so that one write of all blocks goes to many pieces.
fn pieces(fs: &Fs, c: &Caller) -> InodeNo {
    let how = OpenFlags::READ.union(OpenFlags::WRITE);
    let ino = fs.create(c, fs.root(), b"file", 0o644, how).unwrap().ino;
    for n in (0..BLOCKS).step_by(2) {
        fs.write(c, ino, (n * BLOCK) as u64, &[1; BLOCK]).unwrap();
        fs.sync().unwrap();
    }
    ino
}

fn content(fs: &Fs) -> Vec<u8> {
    let c = Caller::root();
    let ino = fs.lookup(&c, fs.root(), b"file").unwrap().ino;
    let mut out = vec![9; BLOCKS * BLOCK];
    let n = fs.read(ino, 0, &mut out).unwrap();
    out.truncate(n);
    out
}

#[test]
fn a_commit_beside_a_write_has_all_of_it_or_nothing() {
    let made = image("-t ext4 -b 1024 -J size=1", 8).to_bytes();
    let options = || MountOptions::parse("data=journal,commit=3600").unwrap();
    let (mut before, mut after) = (0, 0);
    for at in 1.. {
        let dev = Arc::new(RamDev::from_image(&made));
        let fs = mount(dev.clone(), options());
        let c = Caller::root();
        let ino = pieces(&fs, &c);
        let old = content(&fs);
        let (begin, begun) = channel();
        let (tell, done) = channel();
        let schedule = Arc::new(CommitAt {
            left: AtomicU32::new(at),
            begin,
            done: Mutex::new(done),
        });
        let left = thread::scope(|scope| {
            let (fs, dev) = (&fs, &dev);
            let committed = scope.spawn(move || {
                begun.recv().ok()?;
                fs.sync().unwrap();
                let left = dev.fork();
                let _ = tell.send(());
                Some(left)
            });
            let scheduled = Scheduled::by(schedule.clone());
            fs.write(&c, ino, 0, &[2; BLOCKS * BLOCK]).unwrap();
            drop((scheduled, schedule));
            committed.join().unwrap()
        });
        let Some(left) = left else {
            break;
        };
        let found = content(&mount(Arc::new(left), options()));
        match found {
            _ if found == old => before += 1,
            _ if found == [2; BLOCKS * BLOCK] => after += 1,
            _ => {
                let blocks = found.chunks(BLOCK).map(|b| b[0]).collect::<Vec<_>>();
                panic!("a commit at lock {at} of the write took a part of it: {blocks:?}");
            }
        }
    }
    assert!(before > 0 && after > 0, "{before} {after}");
}
