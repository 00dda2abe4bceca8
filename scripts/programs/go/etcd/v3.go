package main

import (
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

var v3 = version{
	create: func(dir string) (func(uint64, []byte) error, error) {
		// A segment is full after three entries.
		wal.SegmentSizeBytes = 16 << 10
		log, err := wal.Create(zap.NewNop(), dir, []byte("metadata"))
		if err != nil {
			return nil, err
		}
		save := func(number uint64, data []byte) error {
			state := raftpb.HardState{Term: 1, Commit: number}
			return log.Save(state, []raftpb.Entry{{Term: 1, Index: number, Data: data}})
		}
		return save, log.SaveSnapshot(walpb.Snapshot{})
	},
	exist: wal.Exist,
	read: func(dir string) ([][]byte, error) {
		log, err := wal.Open(zap.NewNop(), dir, walpb.Snapshot{})
		if err != nil {
			return nil, err
		}
		defer log.Close()
		_, _, entries, err := log.ReadAll()
		var found [][]byte
		for _, entry := range entries {
			found = append(found, entry.Data)
		}
		return found, err
	},
	repair: func(dir string) bool { return wal.Repair(zap.NewNop(), dir) },
}
