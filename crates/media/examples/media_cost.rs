//! What the devices themselves cost, without a file system.
//!
//! `media_cost meter` - counting one request, and timing it too, by one and by two threads;
//! `media_cost ram` - 4 KiB and 1 MiB copies in and out of a [`RamDev`], by one and by two threads;
//! `media_cost crash` - recording on a [`SimDev`] and building the states after a power cut;
//! `media_cost pmem DIR` - loads, stores, flushes and fences in a new file there, and simulated;
//! `media_cost durable PATH` - a durable write on a file or block device: **the content is
//! overwritten**.

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use parking_lot::Mutex;
use stetfs_media::pmem::Dirty;
use stetfs_media::sim::{Keep, PmemTiming, SimDev, SimPmemOptions};
use stetfs_media::{
    Block, BlockDev, Cause, Class, FileDev, Image, MappedPmem, MediaError, Pmem, RamDev, Survives,
    Tag,
};

const LOG: Tag = Tag::new(Class::Journal, Cause::Log);

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["meter"] => meter(2_000_000),
        ["ram"] => ram(256 << 20, 200_000),
        ["crash"] => crash(4000),
        ["pmem", dir] => pmem(dir.as_ref(), 20_000).unwrap_or_else(|e| fail(&e.to_string())),
        ["durable", path] => durable(path, 3000).unwrap_or_else(|e| fail(&e.to_string())),
        _ => fail("media_cost meter | ram | crash | pmem DIR | durable PATH"),
    }
}

fn fail(why: &str) {
    eprintln!("{why}");
    std::process::exit(2);
}

/// Runs `work(thread, i)` `count` times in each of `threads` threads; nanoseconds a call, the best
/// of nine: what disturbs from outside only ever adds.
fn time_ns(threads: usize, count: u64, work: impl Fn(usize, u64) + Sync) -> f64 {
    let mut runs: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let work = &work;
                    scope.spawn(move || (0..count).for_each(|i| work(thread, i)));
                }
            });
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[0]
}

/// A read of zero bytes does nothing but count; on a file it is timed too, without a system call.
fn meter(count: u64) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = FileDev::options().open(file.path()).expect("a file");
    let memory = RamDev::new(1 << 20);
    let devices: [(&str, &dyn BlockDev); 2] = [("counted", &memory), ("counted and timed", &file)];
    for (what, dev) in devices {
        for threads in [1, 2] {
            let ns = time_ns(threads, count, |_, _| {
                dev.read_at(0, black_box(&mut []), LOG)
                    .expect("an empty read");
            });
            println!("empty request, {what}, {threads} thread(s): {ns:.1} ns");
        }
    }
}

fn ram(bytes: usize, count: u64) {
    let dev = RamDev::new(bytes as u64);
    let flat = vec![3u8; bytes];
    for (name, size, count) in [("4 KiB", 4096, count), ("1 MiB", 1 << 20, count / 100)] {
        let slots = dev.size() / 2 / size as u64;
        let place = |thread: usize, i: u64| {
            let step = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            (thread as u64 * slots + step % slots) * size as u64
        };
        let buffers: [_; 2] = std::array::from_fn(|_| Mutex::new(vec![7u8; size]));
        for threads in [1, 2] {
            let copy = time_ns(threads, count, |thread, i| {
                let at = place(thread, i) as usize;
                buffers[thread]
                    .lock()
                    .copy_from_slice(black_box(&flat[at..at + size]));
            });
            let write = time_ns(threads, count, |thread, i| {
                dev.write_at(place(thread, i), &buffers[thread].lock(), LOG)
                    .expect("in range");
            });
            let read = time_ns(threads, count, |thread, i| {
                dev.read_at(place(thread, i), &mut buffers[thread].lock(), LOG)
                    .expect("in range");
            });
            println!(
                "{name}, {threads} thread(s): write {write:.0} ns, read {read:.0} ns, plain copy \
                    {copy:.0} ns"
            );
        }
    }
}

/// 64 MiB with content everywhere, one flush for eight writes of a block.
fn crash(writes: u64) {
    let mut start = Image::new(64 << 20);
    start.fill(0, 64 << 20, 1);
    let dev = SimDev::new(start);
    let began = Instant::now();
    for i in 0..writes {
        let place = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50;
        dev.write_at(place * 4096, &[i as u8; 4096], LOG)
            .expect("a write");
        if i % 8 == 7 {
            dev.flush(Cause::Log).expect("a flush");
        }
    }
    println!(
        "recorded write: {:.2} us",
        began.elapsed().as_micros() as f64 / writes as f64
    );
    let tape = dev.tape();
    let began = Instant::now();
    let points = tape.crash_points().count();
    println!(
        "moment of a tape: {:.2} us",
        began.elapsed().as_micros() as f64 / points as f64
    );
    let (mut states, mut differing) = (0, 0);
    let began = Instant::now();
    for point in tape.crash_points() {
        for seed in 0..8 {
            let state = point.crash(&Keep::Random(seed));
            differing += state.image().unshared_pages(point.stable()).len();
            states += 1;
        }
    }
    let us = began.elapsed().as_micros() as f64 / f64::from(states);
    println!(
        "state as a device: {us:.2} us, {:.1} pages of its own",
        differing as f64 / f64::from(states)
    );
}

/// Pages of a region of 16 MiB, one after the other.
fn pmem(dir: &Path, count: u64) -> Result<(), MediaError> {
    const SIZE: u64 = 16 << 20;
    let path = dir.join(format!("media_cost.{}", std::process::id()));
    let mapped = MappedPmem::options()
        .survives(Survives::ProcessCrash)
        .create(&path, SIZE)?;
    // Whoever has it open keeps it, and nobody has to remove it.
    std::fs::remove_file(&path).expect("the file that was just made");
    let simulated = SimPmemOptions {
        record: false,
        timing: PmemTiming::Nvm,
    }
    .build(Image::new(SIZE));
    let media: [(&dyn Pmem, u64); 2] = [(&mapped, count), (&simulated, count / 10)];
    for (pmem, count) in media {
        println!("{}", pmem.describe());
        let page = |i: u64| i % (SIZE / 4096) * 4096;
        let measure = |what: &str, work: &(dyn Fn(u64) -> Result<(), MediaError> + Sync)| {
            let ns = time_ns(1, count, |_, i| work(i).expect("in range"));
            println!("  {what}: {ns:.0} ns");
        };
        let buffer = [7; 4096];
        measure("fence", &|_| pmem.fence(Cause::Log));
        measure("load a word", &|i| {
            pmem.load_u64(page(i), LOG).map(|word| _ = black_box(word))
        });
        measure("load 4 KiB", &|i| {
            pmem.load(page(i), &mut black_box([0; 4096]), LOG)
        });
        measure("store 4 KiB", &|i| pmem.store(page(i), &buffer, LOG));
        measure("store 64 B, flush, fence", &|i| {
            pmem.store(page(i), &buffer[..64], LOG)?;
            pmem.flush(page(i), 64, LOG)?;
            pmem.fence(Cause::Log)
        });
        measure("store 64 B past the cache, fence", &|i| {
            pmem.store_nt(page(i), &buffer[..64], LOG)?;
            pmem.fence(Cause::Log)
        });
        measure("store 4 KiB, flush, fence", &|i| {
            pmem.store(page(i), &buffer, LOG)?;
            pmem.flush(page(i), 4096, LOG)?;
            pmem.fence(Cause::Log)
        });
        measure("store 4 KiB past the cache, fence", &|i| {
            pmem.store_nt(page(i), &buffer, LOG)?;
            pmem.fence(Cause::Log)
        });
        measure("body of 4 KiB past the cache, commit word", &|i| {
            let mut body = Dirty::in_memory(pmem);
            body.store_nt(page(i), &buffer, LOG)?;
            let body = body.submit()?.fence(Cause::Log)?;
            body.store_commit_word(page(i) ^ 4096, i, LOG)
        });
    }
    let path = dir.join(format!("media_cost.{}.synced", std::process::id()));
    let synced = MappedPmem::options().create(&path, SIZE)?;
    std::fs::remove_file(&path).expect("the file that was just made");
    println!("{}", synced.describe());
    let ns = time_ns(1, count / 100, |_, i| {
        let at = i % (SIZE / 4096) * 4096;
        synced
            .store_nt(at, &[i as u8; 4096], LOG)
            .and_then(|()| synced.fence(Cause::Log))
            .expect("in range");
    });
    println!("  store 4 KiB past the cache, fence: {ns:.0} ns");
    Ok(())
}

fn durable(path: &str, count: u64) -> Result<(), MediaError> {
    for direct in [false, true] {
        let dev = match FileDev::options().direct(direct).open(path) {
            Ok(dev) => dev,
            Err(e) => {
                println!("direct {direct}: {e}");
                continue;
            }
        };
        for size in [4096, 16_384] {
            let block = Block::copy_of(&vec![7; size]);
            let slots = dev.size() / size as u64;
            for name in ["write + flush", "durable write"] {
                let mut times: Vec<f64> = Vec::new();
                for i in 0..count {
                    let at = i % slots * size as u64;
                    let start = Instant::now();
                    if name == "durable write" {
                        dev.write_durable(at, &[block.bytes()], LOG)?;
                    } else {
                        dev.write_at(at, block.bytes(), LOG)?;
                        dev.flush(Cause::Log)?;
                    }
                    times.push(start.elapsed().as_nanos() as f64 / 1000.0);
                }
                times.sort_by(f64::total_cmp);
                let part = |share: usize| times[times.len() * share / 100];
                println!(
                    "{}: {:2} KiB {name}: 10% {:.1}, median {:.1}, 90% {:.1} us",
                    dev.describe(),
                    size >> 10,
                    part(10),
                    part(50),
                    part(90)
                );
            }
        }
    }
    Ok(())
}

/// Small runs, so that this program cannot rot.
#[cfg(test)]
mod tests {
    #[test]
    fn every_measurement_runs() {
        super::meter(100);
        super::ram(8 << 20, 100);
        super::crash(20);
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(1 << 20).expect("a size");
        let path = file.path().to_str().expect("a plain path");
        super::durable(path, 5).expect("a file can be written");
        let dir = tempfile::tempdir().expect("a directory");
        super::pmem(dir.path(), 100).expect("a file can be mapped");
    }
}
