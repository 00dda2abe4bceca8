package main

import (
	"io"
	"log"

	"github.com/coreos/etcd/raft/raftpb"
	"github.com/coreos/etcd/wal"
	"github.com/coreos/etcd/wal/walpb"
)

var v2 = version{
	create: func(dir string) (func(uint64, []byte) error, error) {
		log, err := wal.Create(dir, []byte("metadata"))
		if err != nil {
			return nil, err
		}
		return func(number uint64, data []byte) error {
			state := raftpb.HardState{Term: 1, Commit: number}
			return log.Save(state, []raftpb.Entry{{Term: 1, Index: number, Data: data}})
		}, nil
	},
	exist: wal.Exist,
	read: func(dir string) ([][]byte, error) {
		log, err := wal.Open(dir, walpb.Snapshot{})
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
	repair: wal.Repair,
}

func init() { log.SetOutput(io.Discard) }
