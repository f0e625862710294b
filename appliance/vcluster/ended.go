package vcluster

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"rivulet/fabric/peer"
)

// A peer deletes what a virtual cluster has there only when this device says that it has ended there: its record says that
// the peer is none of its targets, or that it is being deleted, or its seed is among those of the deleted ones. That is
// written before the record goes. One that this device does not know, because it was restored from before it or cannot
// read it, stays there.

// mostEnded bounds the seeds of deleted virtual clusters; what peers have of older ones stays until its owner removes it.
const mostEnded = 2000

// endings are the deleted virtual clusters.
type endings struct {
	file  string
	mu    sync.Mutex
	seeds []string // the newest last
}

// load reads the file. A virtual cluster that a restore has brought back has not ended any more. A file that cannot be read
// ends nothing.
func (e *endings) load(records []record, log *slog.Logger) {
	raw, err := os.ReadFile(e.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("which virtual clusters were deleted cannot be read; peers keep what these have there", "err", diskErr(err))
	}
	all := strings.Fields(string(raw))
	left := slices.DeleteFunc(slices.Clone(all), func(seed string) bool {
		return slices.ContainsFunc(records, func(r record) bool { return r.Seed == seed && !r.Deleting })
	})
	if len(left) < len(all) {
		if err := e.save(left); err != nil {
			log.Error("a virtual cluster that is here again stays noted as deleted", "err", err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seeds = left
}

func (e *endings) save(seeds []string) error {
	return writeFile(e.file, []byte(strings.Join(seeds, "\n")+"\n"), 0o600, 0)
}

// add notes that a virtual cluster was deleted. When it returns nil that is on the disk.
func (e *endings) add(seed string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seed == "" || slices.Contains(e.seeds, seed) {
		return nil
	}
	next := append(slices.Clone(e.seeds), seed)
	next = next[max(0, len(next)-mostEnded):]
	if err := e.save(next); err != nil {
		return err
	}
	e.seeds = next
	return nil
}

// all returns the seeds.
func (e *endings) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.seeds)
}

// endedAt returns the seeds of those, out of the virtual clusters that a peer has asked about, that have ended there.
func endedAt(k *Manager, peers []peer.Link, l peer.Link, asked []peer.ID) (seeds []string) {
	over := map[peer.ID]string{}
	k.mu.Lock()
	defer k.mu.Unlock()   // one that goes meanwhile is in one of the two
	if !k.unread.Load() { // the record of one that was brought back may be the one that cannot be read
		for _, seed := range k.ended.all() {
			over[peer.Hosted(k.cfg.ID, seed)] = seed
		}
	}
	for _, c := range k.all {
		r := c.record()
		if over[r.ID] = r.Seed; !r.targetable(k.cfg.ID) || r.allows(k.cfg.ID, l) || !r.Deleting && !r.known(peers) {
			delete(over, r.ID)
		}
	}
	for _, id := range asked {
		if seed, ok := over[id]; ok {
			seeds = append(seeds, seed)
		}
	}
	return seeds
}
