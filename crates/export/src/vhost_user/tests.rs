//! The server against a driver of the test's own, behind rust-vmm's other end of the protocol, and
//! against drivers that break every rule. QEMU and a kernel's driver are in `make test-guest`.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::fs::MemfdFlags;
use stetfs_media::RamDev;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::config::{QUEUES, RANGE_SECTORS, RANGES};
use super::{Listener, Server};
use crate::testing::{Held, Random};
use crate::{ByteDev, SocketError};

const SIZE: u64 = Held::SIZE;
/// The machine's memory.
const MEMORY: u64 = 8 << 20;
/// Where the test's program has it.
const THERE: u64 = 0x7000_0000_0000;
/// Entries of a queue.
const ENTRIES: u16 = 16;
/// Bytes of memory for each queue: its rings at the beginning, then the data of its requests.
const AREA: u64 = 2 << 20;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x3000;

/// A server in a directory of its own.
struct Served {
    server: Option<Server>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Served {
    fn new(dev: Arc<ByteDev>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a-disk-with-a-long-name");
        let listener = Listener::bind(&socket).unwrap();
        Self {
            server: Some(Server::start(listener, dev).unwrap()),
            socket,
            _dir: dir,
        }
    }

    fn machine(&self, queues: usize) -> Machine {
        self.machine_with(
            queues,
            1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_RING_F_EVENT_IDX,
        )
    }

    fn machine_with(&self, queues: usize, features: u64) -> Machine {
        Machine::new(&self.socket, queues, features)
    }
}

/// A virtual machine with a driver.
struct Machine {
    frontend: Frontend,
    memory: GuestMemoryMmap,
    queues: Vec<Ring>,
    _file: File,
}

/// A queue as a driver has it.
struct Ring {
    base: u64,
    kick: EventFd,
    call: EventFd,
    /// Requests that were offered, and that came back.
    offered: u16,
    seen: u16,
    has_event_idx: bool,
    /// Where the status of each request that is under way is.
    status: HashMap<u32, u64>,
}

/// A buffer of a request.
enum Buffer<'a> {
    /// The disk reads it.
    Out(&'a [u8]),
    /// The disk writes to it.
    In(usize),
}

impl Machine {
    fn new(socket: &std::path::Path, queues: usize, features: u64) -> Self {
        let file = rustix::fs::memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        file.set_len(MEMORY).unwrap();
        let range = (
            GuestAddress(0),
            MEMORY as usize,
            Some(FileOffset::new(file.try_clone().unwrap(), 0)),
        );
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let mut frontend = Frontend::connect(socket, QUEUES as u64).unwrap();
        frontend.set_owner().unwrap();
        let offered = frontend.get_features().unwrap();
        let features = features | 1 << VIRTIO_F_VERSION_1;
        assert_eq!(offered & features, features, "{offered:#x}");
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        let with_protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        assert!(protocol.contains(VhostUserProtocolFeatures::CONFIG));
        assert_eq!(frontend.get_queue_num().unwrap(), QUEUES as u64);
        frontend.set_features(features | with_protocol).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: THERE,
            mmap_offset: 0,
            mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&file),
        };
        frontend.set_mem_table(&[region]).unwrap();
        let mut machine = Self {
            frontend,
            memory,
            queues: Vec::new(),
            _file: file,
        };
        for n in 0..queues {
            machine.start(n, features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0);
        }
        machine
    }

    /// Starts a queue.
    fn start(&mut self, n: usize, has_event_idx: bool) {
        let base = n as u64 * AREA;
        let (kick, call) = (EventFd::new(EFD_NONBLOCK), EventFd::new(0));
        let (kick, call) = (kick.unwrap(), call.unwrap());
        let frontend = &mut self.frontend;
        frontend.set_vring_num(n, ENTRIES).unwrap();
        let addresses = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: THERE + base,
            used_ring_addr: THERE + base + USED,
            avail_ring_addr: THERE + base + AVAIL,
            log_addr: None,
        };
        frontend.set_vring_addr(n, &addresses).unwrap();
        frontend.set_vring_base(n, 0).unwrap();
        frontend.set_vring_call(n, &call).unwrap();
        frontend.set_vring_kick(n, &kick).unwrap();
        frontend.set_vring_enable(n, true).unwrap();
        self.queues.push(Ring {
            base,
            kick,
            call,
            offered: 0,
            seen: 0,
            has_event_idx,
            status: HashMap::new(),
        });
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_slice(&mut bytes, GuestAddress(at))
            .unwrap();
        bytes
    }

    fn u16_at(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    fn descriptor(&self, n: usize, slot: u16, at: u64, len: u32, flags: u32, next: u16) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend((flags as u16).to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(self.queues[n].base + 16 * u64::from(slot), &bytes);
    }

    /// Offers the chain that begins at a slot, and kicks.
    fn offer(&mut self, n: usize, slot: u16) {
        let ring = &mut self.queues[n];
        let at = ring.base + AVAIL + 4 + 2 * u64::from(ring.offered % ENTRIES);
        ring.offered = ring.offered.wrapping_add(1);
        let (base, offered) = (ring.base, ring.offered);
        self.put(at, &slot.to_le_bytes());
        self.put(base + AVAIL + 2, &offered.to_le_bytes());
        self.queues[n].kick.write(1).unwrap();
    }

    /// Lays a request out from a slot on, with a head of this type and these buffers, and offers
    /// it. Returns where its first buffer is.
    fn send(&mut self, n: usize, slot: u16, kind: u32, sector: u64, buffers: &[Buffer<'_>]) -> u64 {
        let mut head = kind.to_le_bytes().to_vec();
        head.extend([0; 4]);
        head.extend(sector.to_le_bytes());
        let all: Vec<_> = std::iter::once(Buffer::Out(&head[..]))
            .chain(buffers.iter().map(|buffer| match buffer {
                Buffer::Out(bytes) => Buffer::Out(bytes),
                Buffer::In(len) => Buffer::In(*len),
            }))
            .chain([Buffer::In(1)])
            .collect();
        let mut at = self.queues[n].base + DATA + 0x10000 * u64::from(slot);
        let (mut first, mut status) = (0, 0);
        for (i, buffer) in all.iter().enumerate() {
            let last = i + 1 == all.len();
            let next = if last { 0 } else { VRING_DESC_F_NEXT };
            let (len, flags) = match buffer {
                Buffer::Out(bytes) => {
                    self.put(at, bytes);
                    (bytes.len(), next)
                }
                Buffer::In(len) => {
                    self.put(at, &vec![0xee; *len]);
                    (*len, next | VRING_DESC_F_WRITE)
                }
            };
            let place = slot + i as u16;
            self.descriptor(n, place, at, len as u32, flags, place + 1);
            if i == 1 {
                first = at;
            }
            status = at;
            at += len as u64;
        }
        self.queues[n].status.insert(slot.into(), status);
        self.offer(n, slot);
        first
    }

    /// Waits for the next request that comes back: its slot, and the bytes that were written.
    fn next(&mut self, n: usize) -> (u32, u32) {
        let ring = &self.queues[n];
        let (base, seen) = (ring.base, ring.seen);
        while self.u16_at(base + USED + 2) == seen {
            // With this event, a call comes for the next one only.
            if ring.has_event_idx {
                self.put(
                    base + AVAIL + 4 + 2 * u64::from(ENTRIES),
                    &seen.to_le_bytes(),
                );
            }
            if self.u16_at(base + USED + 2) == seen {
                ring.call.read().unwrap();
            }
        }
        let at = base + USED + 4 + 8 * u64::from(seen % ENTRIES);
        let entry = self.get(at, 8);
        self.queues[n].seen = seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        (word(0), word(4))
    }

    fn status(&mut self, n: usize, slot: u32) -> u32 {
        let at = self.queues[n].status.remove(&slot).unwrap();
        self.get(at, 1)[0].into()
    }

    /// A request and its status.
    fn ask(&mut self, n: usize, kind: u32, sector: u64, buffers: &[Buffer<'_>]) -> u32 {
        self.send(n, 0, kind, sector, buffers);
        let (slot, _) = self.next(n);
        assert_eq!(slot, 0);
        self.status(n, slot)
    }

    fn read(&mut self, n: usize, sector: u64, len: usize) -> Vec<u8> {
        // In two buffers that share a sector.
        let (one, other) = (len / 3, len - len / 3);
        let buffers = [Buffer::In(one), Buffer::In(other)];
        let at = self.send(n, 0, VIRTIO_BLK_T_IN, sector, &buffers);
        let (slot, written) = self.next(n);
        assert_eq!(self.status(n, slot), VIRTIO_BLK_S_OK);
        assert_eq!(written as usize, len + 1);
        self.get(at, len)
    }

    fn config(&mut self) -> Vec<u8> {
        let asked = [0; 60];
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend.get_config(0, 60, flags, &asked).unwrap().1
    }
}

/// A device in memory.
fn memory() -> Arc<ByteDev> {
    Arc::new(ByteDev::new(Arc::new(RamDev::new(SIZE))))
}

/// A range of a discard.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

/// Whether a thread has not ended for a while.
fn stays<T>(thread: &thread::ScopedJoinHandle<'_, T>) -> bool {
    (0..2000).all(|_| {
        thread::yield_now();
        !thread.is_finished()
    })
}

#[test]
fn the_configuration_says_what_the_disk_is() {
    let served = Served::new(memory());
    let mut machine = served.machine(1);
    let config = machine.config();
    let u32_at = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!(u32_at(0), (SIZE / 512) as u32);
    assert_eq!(u32_at(12), 126, "segments");
    assert_eq!(u32_at(20), 512, "block size");
    assert_eq!(config[32], 1, "a write is durable behind a flush");
    assert_eq!(config[34..36], [64, 0], "queues");
    assert_eq!((u32_at(36), u32_at(40)), (RANGE_SECTORS, RANGES as u32));
    let at = machine.send(0, 0, VIRTIO_BLK_T_GET_ID, 0, &[Buffer::In(20)]);
    assert_eq!(machine.next(0), (0, 21));
    assert_eq!(machine.status(0, 0), VIRTIO_BLK_S_OK);
    assert_eq!(machine.get(at, 20), b"a-disk-with-a-long-n");
}

/// Random requests in two queues, against a plain list of bytes.
#[test]
fn requests_do_what_they_do_to_a_plain_file() {
    let served = Served::new(memory());
    let mut machine = served.machine(2);
    let mut model = vec![0u8; SIZE as usize];
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for n in 0..2000 {
        let queue = random.below(2) as usize;
        let sector = random.below(SIZE / 512);
        let most = (SIZE / 512 - sector).min(1 << random.below(7));
        let sectors = 1 + random.below(most);
        let bytes = (sector * 512) as usize..((sector + sectors) * 512) as usize;
        let mut ask = |kind, buffers: &[Buffer<'_>]| {
            let status = machine.ask(queue, kind, sector, buffers);
            assert_eq!(
                status, VIRTIO_BLK_S_OK,
                "request {n}: {kind} of {sector} + {sectors}"
            );
        };
        match random.below(6) {
            0 | 1 => {
                let data: Vec<u8> = bytes.clone().map(|i| (i + n) as u8 | 1).collect();
                let (one, other) = data.split_at(random.below(data.len() as u64) as usize);
                ask(VIRTIO_BLK_T_OUT, &[Buffer::Out(one), Buffer::Out(other)]);
                model[bytes].copy_from_slice(&data);
            }
            kind @ (2 | 3) => {
                let kind = [VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES][kind as usize - 2];
                let half = (sectors / 2) as u32;
                let mut ranges = range(sector, half, 0);
                ranges.extend(range(sector + u64::from(half), sectors as u32 - half, 0));
                ask(kind, &[Buffer::Out(&ranges)]);
                model[bytes].fill(0);
            }
            4 => ask(VIRTIO_BLK_T_FLUSH, &[]),
            _ => {
                let found = machine.read(queue, sector, bytes.len());
                assert!(found == model[bytes], "request {n}: {sector} + {sectors}");
            }
        }
    }
    let stats = served.server.as_ref().unwrap().stats();
    assert_eq!((stats.requests, stats.malformed), (2000, 0));
}

#[test]
fn what_cannot_be_done_is_refused_and_the_queue_goes_on() {
    use Buffer::{In, Out};
    let (watched, _begun) = Held::new(1 << 20);
    let served = Served::new(watched.bytes());
    let mut machine = served.machine(1);
    let last = SIZE / 512 - 1;
    let sectors = [7; 1024];
    let mut ask = |kind, sector, buffers: &[Buffer<'_>]| machine.ask(0, kind, sector, buffers);
    for sector in [last, last + 1, u64::MAX, u64::MAX / 512 + 1] {
        assert_eq!(
            ask(VIRTIO_BLK_T_OUT, sector, &[Out(&sectors)]),
            VIRTIO_BLK_S_IOERR
        );
        assert_eq!(
            ask(VIRTIO_BLK_T_IN, sector, &[In(1024)]),
            VIRTIO_BLK_S_IOERR
        );
    }
    assert_eq!(
        ask(VIRTIO_BLK_T_OUT, 0, &[Out(&sectors[..513])]),
        VIRTIO_BLK_S_IOERR
    );
    assert_eq!(ask(VIRTIO_BLK_T_IN, 0, &[In(513)]), VIRTIO_BLK_S_IOERR);
    for kind in [2, 14, 16, u32::MAX] {
        assert_eq!(ask(kind, 0, &[In(512)]), VIRTIO_BLK_S_UNSUPP);
    }
    for (kind, status, body) in [
        (VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_S_UNSUPP, range(0, 1, 1)),
        (VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_S_UNSUPP, range(0, 1, 2)),
        (
            VIRTIO_BLK_T_WRITE_ZEROES,
            VIRTIO_BLK_S_UNSUPP,
            range(0, 1, 2),
        ),
        (VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_S_OK, range(0, 1, 1)),
        (VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_S_IOERR, range(last, 2, 0)),
        (
            VIRTIO_BLK_T_DISCARD,
            VIRTIO_BLK_S_IOERR,
            range(0, u32::MAX, 0),
        ),
        (
            VIRTIO_BLK_T_DISCARD,
            VIRTIO_BLK_S_IOERR,
            range(0, 1, 0)[1..].to_vec(),
        ),
        (
            VIRTIO_BLK_T_DISCARD,
            VIRTIO_BLK_S_IOERR,
            range(0, 1, 0).repeat(RANGES + 1),
        ),
        (
            VIRTIO_BLK_T_DISCARD,
            VIRTIO_BLK_S_OK,
            range(0, 1, 0).repeat(RANGES),
        ),
        (VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_S_IOERR, Vec::new()),
    ] {
        assert_eq!(ask(kind, 0, &[Out(&body)]), status, "{kind}: {body:?}");
    }
    watched.set_failing(true);
    assert_eq!(ask(VIRTIO_BLK_T_IN, 0, &[In(512)]), VIRTIO_BLK_S_IOERR);
    watched.set_failing(false);
    assert_eq!(machine.read(0, 0, 512), vec![0; 512]);
}

/// A machine that knows no flushes, and one that turns the cache off, have each write durable when
/// it is answered.
#[test]
fn a_write_is_durable_when_the_machine_may_rely_on_it() {
    let (watched, _begun) = Held::new(1 << 20);
    let served = Served::new(watched.bytes());
    let zeros = range(0, 1, 0);
    let mut machine = served.machine(1);
    // Requests, with how many flushes of the device come with each.
    let ask = |machine: &mut Machine, kind, body: &[u8], flushes| {
        let before = watched.flushes();
        let status = machine.ask(0, kind, 0, &[Buffer::Out(body)]);
        assert_eq!(status, VIRTIO_BLK_S_OK);
        assert_eq!(watched.flushes(), before + flushes, "request {kind}");
    };
    let all = |machine: &mut Machine, flushes| {
        ask(machine, VIRTIO_BLK_T_OUT, &[7; 512], flushes);
        ask(machine, VIRTIO_BLK_T_DISCARD, &zeros, flushes);
        ask(machine, VIRTIO_BLK_T_WRITE_ZEROES, &zeros, flushes);
    };
    all(&mut machine, 0);
    ask(&mut machine, VIRTIO_BLK_T_FLUSH, &[], 1);
    let flags = VhostUserConfigFlags::WRITABLE;
    machine.frontend.set_config(32, flags, &[0]).unwrap();
    assert_eq!(machine.config()[32], 0);
    // What was answered before is durable now.
    assert_eq!(watched.flushes(), 2);
    all(&mut machine, 1);
    machine.frontend.set_config(32, flags, &[1]).unwrap();
    // Nothing answers what sets the configuration; what reads it comes after it.
    assert_eq!(machine.config()[32], 1);
    all(&mut machine, 0);
    drop(machine);
    let mut simple = served.machine_with(1, 0);
    all(&mut simple, 1);
}

/// A read does not wait for a flush in the same queue, another queue does not either, and the
/// server's end waits for the flush.
#[test]
fn requests_run_at_the_same_time_and_are_finished_at_the_end() {
    let (watched, begun) = Held::new(0);
    let mut served = Served::new(watched.bytes());
    let mut machine = served.machine(2);
    machine.send(0, 8, VIRTIO_BLK_T_FLUSH, 0, &[]);
    begun.recv().unwrap();
    machine.read(0, 0, 512);
    machine.read(1, 0, 512);
    let (stopped, is_stopped) = mpsc::channel();
    thread::scope(|scope| {
        let mut server = served.server.take().unwrap();
        scope.spawn(move || {
            server.stop();
            stopped.send(()).unwrap();
        });
        // The connection ends, and with it new requests.
        while machine.frontend.get_features().is_ok() {
            thread::yield_now();
        }
        assert!(
            is_stopped.try_recv().is_err(),
            "stopped with a flush under way"
        );
        watched.allow();
        is_stopped.recv().unwrap();
    });
    assert_eq!(machine.next(0), (8, 1));
    assert_eq!(machine.status(0, 8), VIRTIO_BLK_S_OK);
    assert!(!served.socket.exists());
}

/// Whoever stops a queue gets it back with no request under way, and can start it again there.
#[test]
fn a_queue_is_stopped_with_nothing_under_way() {
    let (watched, begun) = Held::new(0);
    let served = Served::new(watched.bytes());
    let mut machine = served.machine(1);
    machine.send(0, 8, VIRTIO_BLK_T_FLUSH, 0, &[]);
    begun.recv().unwrap();
    machine.read(0, 0, 512);
    thread::scope(|scope| {
        let frontend = &machine.frontend;
        let asked = scope.spawn(|| frontend.get_vring_base(0).unwrap());
        let waited = stays(&asked);
        watched.allow();
        assert_eq!(asked.join().unwrap(), 2, "requests that were taken");
        assert!(waited, "stopped with a flush under way");
    });
    assert_eq!(machine.next(0), (8, 1));
}

/// The next machine is served when the first one was killed with requests under way, and only when
/// those are done.
#[test]
fn the_next_machine_comes_when_the_first_has_gone() {
    let (watched, begun) = Held::new(0);
    let served = Served::new(watched.bytes());
    let mut first = served.machine(1);
    first.send(0, 8, VIRTIO_BLK_T_FLUSH, 0, &[]);
    begun.recv().unwrap();
    drop(first);
    thread::scope(|scope| {
        let next = scope.spawn(|| served.machine(1).read(0, 0, 512));
        let waited = stays(&next);
        watched.allow();
        assert_eq!(next.join().unwrap(), [0; 512]);
        assert!(waited, "served with another's flush under way");
    });
    let stats = served.server.as_ref().unwrap().stats();
    assert_eq!((stats.accepted, stats.requests), (2, 2));
}

/// Queues and requests that are none: no panic, no answer to what has no place for it, and what
/// comes next is served.
#[test]
fn hostile_requests_are_returned() {
    let served = Served::new(memory());
    let mut machine = served.machine(1);
    let (next, write) = (VRING_DESC_F_NEXT, VRING_DESC_F_WRITE);
    let indirect = 4;
    let head = DATA;
    machine.put(head, &range(0, 0, 0));
    let chains: &[&[(u64, u32, u32, u16)]] = &[
        // No place for a status; none at all; buffers outside of the memory; a ring.
        &[(head, 16, 0, 0)],
        &[(head, 0, 0, 0)],
        &[(MEMORY, 16, next, 1), (head, 1, write, 0)],
        &[(head, 16, next, 1), (MEMORY - 1, 2, write, 0)],
        &[(u64::MAX, u32::MAX, write, 0)],
        &[(head, 16, next, 1), (head, 1, next, 0)],
        // Links that lead out of the table.
        &[(head, 16, next, ENTRIES)],
        &[(head, 16, next, u16::MAX)],
        // Tables that are none: of no entries, of a part of one, beside the memory, of itself.
        &[(head, 0, indirect, 0)],
        &[(head, 17, indirect, 0)],
        &[(MEMORY, 16, indirect, 0)],
        &[(0, 256, indirect, 0)],
    ];
    for (i, chain) in chains.iter().enumerate() {
        for (slot, (at, len, flags, next)) in chain.iter().enumerate() {
            machine.descriptor(0, slot as u16, *at, *len, *flags, *next);
        }
        machine.offer(0, 0);
        let (slot, written) = machine.next(0);
        assert_eq!((slot, written), (0, 0), "chain {i}");
    }
    // A status, and no head.
    machine.descriptor(0, 0, head, 1, write, 0);
    machine.offer(0, 0);
    assert_eq!(machine.next(0), (0, 1));
    assert_eq!(u32::from(machine.get(head, 1)[0]), VIRTIO_BLK_S_IOERR);
    // A slot that the queue does not have comes back never.
    machine.offer(0, ENTRIES);
    machine.offer(0, u16::MAX);
    assert_eq!(machine.read(0, 0, 512), [0; 512]);
    let malformed = served.server.as_ref().unwrap().stats().malformed;
    assert_eq!(malformed, chains.len() as u64 + 2);
    // More requests than the queue has entries.
    machine.put(AVAIL + 2, &12345u16.to_le_bytes());
    machine.queues[0].kick.write(1).unwrap();
    assert!(machine.frontend.get_features().is_ok());
    drop(machine);
    assert_eq!(served.machine(1).read(0, 0, 512), [0; 512]);
}

/// Random bytes in the table, the list of requests, and the buffers.
#[test]
fn random_queues_end_nothing() {
    let served = Served::new(memory());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut machine = served.machine(1);
    for _ in 0..300 {
        for slot in 0..ENTRIES {
            let at = [0, DATA, MEMORY - 100, random.below(u64::MAX)][random.below(4) as usize];
            let len = [0, 1, 16, 512, random.below(1 << 32)][random.below(5) as usize];
            let (flags, next) = (random.below(8) as u32, random.below(20) as u16);
            machine.descriptor(0, slot, at, len as u32, flags, next);
        }
        let kind = [0, 1, 4, 8, 11, 13][random.below(6) as usize];
        let mut head = u32::to_le_bytes(kind).to_vec();
        head.extend([0; 4]);
        head.extend(random.below(SIZE / 512 + 1).to_le_bytes());
        machine.put(DATA, &head.repeat(40));
        machine.offer(0, random.below(u64::from(ENTRIES)) as u16);
    }
    machine.queues[0].kick.write(1).unwrap();
    drop(machine);
    assert_eq!(served.machine(1).read(0, 0, 512).len(), 512);
}

/// Messages that are none end the connection, and the next one is served.
#[test]
fn hostile_messages_end_the_connection() {
    use io::{Read, Write};
    let served = Served::new(memory());
    let message = |code: u32, flags: u32, body: &[u8]| {
        let mut bytes = code.to_le_bytes().to_vec();
        bytes.extend(flags.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        bytes
    };
    for said in [
        vec![0xff; 64],
        message(1, 7, &[]),
        message(2, 1, &[0xff; 8]),
        message(5, 1, &[0xff; 40]),
        // A queue that there is not, by number, address, and event.
        message(8, 1, &[0xff; 8]),
        message(9, 1, &[0xff; 40]),
        message(12, 1, &[0xff; 8]),
        // A configuration of more bytes than there are.
        message(24, 1, &[0xff; 12]),
        message(1, 1, &[])[..5].to_vec(),
    ] {
        let mut stream = UnixStream::connect(&served.socket).unwrap();
        stream.write_all(&said).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(served.machine(1).read(0, 0, 512), [0; 512]);
}

/// One live server at a socket; what a killed one has left is taken over.
#[test]
fn a_socket_that_is_served_is_left_alone() {
    let served = Served::new(memory());
    let bind = |path: &std::path::Path| Listener::bind(path).err();
    assert!(matches!(
        bind(&served.socket),
        Some(SocketError::Served { .. })
    ));
    let beside = served.socket.with_file_name("file");
    File::create(&beside).unwrap();
    assert!(matches!(bind(&beside), Some(SocketError::Exists { .. })));
    let left = served.socket.with_file_name("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(bind(&left).is_none());
}
