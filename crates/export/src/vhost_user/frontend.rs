//! One connection: the machine's queues, from which requests are taken.

use std::io;
use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stetfs_format::width::{u32_as_usize, usize_as_u64};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VringMutex, VringT};
use virtio_queue::{Error as QueueError, QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use super::config::{QUEUE_SIZE, QUEUES, WRITEBACK_AT, config, features};
use super::disk::Disk;
use super::work::{Request, Work};

/// The event by which the thread that takes requests learns that it is to end. Those up to the
/// number of queues are the queues' and the library's.
pub(super) const END: u64 = usize_as_u64(QUEUES) + 1;

/// The program that has connected, and its machine.
pub(super) struct Frontend {
    pub(super) disk: Arc<Disk>,
    pub(super) work: Arc<Work>,
    pub(super) memory: GuestMemoryAtomic<GuestMemoryMmap>,
    /// The server ends, and takes no more requests.
    pub(super) is_ending: Arc<AtomicBool>,
    /// It was said that the queues are no queues.
    pub(super) has_complained: AtomicBool,
}

/// What a queue has for us.
enum Next {
    Request(Request),
    /// Nothing, for now.
    Nothing,
    /// It is stopped.
    Stopped,
}

impl Frontend {
    /// Takes all requests that a queue has.
    ///
    /// # Errors
    /// The machine has made the queue wrong.
    fn take_all(&self, queue: usize, vring: &VringMutex) -> Result<(), QueueError> {
        loop {
            vring.disable_notification()?;
            loop {
                match self.next(queue, vring)? {
                    Next::Request(request) => self.work.hand_over(request),
                    Next::Nothing => break,
                    Next::Stopped => return Ok(()),
                }
            }
            // What came before the machine saw that it is to tell.
            if !vring.enable_notification()? {
                return Ok(());
            }
        }
    }

    fn next(&self, queue: usize, vring: &VringMutex) -> Result<Next, QueueError> {
        let mut state = vring.get_mut();
        let is_enabled = state.is_enabled();
        let ring = state.get_queue_mut();
        if !is_enabled || !ring.ready() || self.is_ending.load(Ordering::Relaxed) {
            return Ok(Next::Stopped);
        }
        let memory = self.memory.memory().into_inner();
        let newest = ring.avail_idx(&*memory, Ordering::Acquire)?;
        let has_some = newest != Wrapping(ring.next_avail());
        match ring.iter(memory)?.next() {
            Some(chain) => {
                // While the queue is locked: whoever stops it then waits for this request too.
                self.work.begin(queue);
                let vring = vring.clone();
                Ok(Next::Request(Request {
                    chain,
                    vring,
                    queue,
                }))
            }
            // Its list of requests is not in the memory.
            None if has_some => Err(QueueError::InvalidAvailRingIndex),
            None => Ok(Next::Nothing),
        }
    }
}

impl VhostUserBackend for Frontend {
    type Bitmap = ();
    type Vring = VringMutex;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE.into()
    }

    fn features(&self) -> u64 {
        features(&self.disk.dev) | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn acked_features(&self, features: u64) {
        self.disk.set_features(features);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, _: bool) {}

    /// What lies behind the configuration's end reads as zeros.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = config(&self.disk.dev, self.disk.is_write_back());
        let rest = config.get(u32_as_usize(offset)..).unwrap_or_default();
        let zeros = std::iter::repeat(0);
        let bytes = rest.iter().copied().chain(zeros);
        bytes.take(u32_as_usize(size)).collect()
    }

    /// Only the cache can be set.
    fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        match (offset, bytes) {
            (WRITEBACK_AT, [on]) => {
                let set = self.disk.set_write_back(*on != 0);
                set.map_err(io::Error::other)
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn update_memory(&self, _: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        // It is looked up for each request.
        Ok(())
    }

    /// One thread takes the requests of all queues.
    fn queues_per_thread(&self) -> Vec<u64> {
        vec![u64::MAX >> (64 - QUEUES)]
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        self.work.settle(u32_as_usize(queue));
        Ok(())
    }

    /// # Errors
    /// At the end, which ends the thread that calls it.
    fn handle_event(
        &self,
        event: u16,
        _: EventSet,
        vrings: &[VringMutex],
        _: usize,
    ) -> io::Result<()> {
        if u64::from(event) == END {
            return Err(io::Error::other("the connection has ended"));
        }
        let queue = usize::from(event);
        let Some(vring) = vrings.get(queue) else {
            return Ok(());
        };
        if let Err(error) = self.take_all(queue, vring)
            && !self.has_complained.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("queue {queue} of the machine cannot be read: {error}");
        }
        Ok(())
    }
}
