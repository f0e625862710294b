package fabric

import (
	"context"
	"fmt"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// Rotation changes this cluster's WireGuard key from time to time. The identity key never changes.
//
//	make and store the next key ─▶ send to all peers ─▶ store as present, change the tunnel ─▶ send again
//
// A peer changes to the new key when it receives it, or, if it could not, when the old one ceases to answer. Open
// connections wait for about a second. After a power cut the rotation continues.
type Rotation struct {
	// Every is how long a key is used; 0 is for ever.
	Every time.Duration
	// Changed is when the present key was made.
	Changed time.Time
	// Next is the private key of an unfinished rotation, empty if there is none.
	Next string
	// Save stores both private keys durably; next may be empty.
	Save func(current, next string, changed time.Time) error
	// Ticks trigger a check, with the current time; nil checks every hour.
	Ticks <-chan time.Time
}

// rotationPatience bounds the wait for connected peers without the next key; lost peers receive it when they return.
const rotationPatience = 5 * time.Minute

// keys are this cluster's WireGuard keys. The lock is a leaf.
type keys struct {
	mu            sync.Mutex
	private, next wgkey.Private
	public        wgkey.Public
	nextPub       wgkey.Public
	changed       time.Time
}

// load sets the stored keys; next may be empty.
func (k *keys) load(private, next string, changed time.Time) (err error) {
	var now, then wgkey.Private
	if now, err = wgkey.ParsePrivate(private); err == nil && next != "" {
		then, err = wgkey.ParsePrivate(next)
	}
	if err != nil {
		return fmt.Errorf("fabric: %w: restore state.db from a backup or move it away", err)
	}
	k.set(now, then, changed)
	return nil
}

func (k *keys) set(private, next wgkey.Private, changed time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.private, k.public, k.next, k.nextPub, k.changed = private, private.Public(), next, next.Public(), changed
}

func (k *keys) ours() (private wgkey.Private, public wgkey.Public, next wgkey.Private, nextPub wgkey.Public, changed time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.private, k.public, k.next, k.nextPub, k.changed
}

// both are the private keys; next is zero if there is none.
func (k *keys) both() (present, next wgkey.Private) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.private, k.next
}

// followKeys changes the key when it is due.
func (f *Fabric) followKeys(ctx context.Context) {
	ticks := f.cfg.Rotation.Ticks
	if ticks == nil {
		t := time.NewTicker(time.Hour)
		defer t.Stop()
		ticks = t.C
	}
	var now time.Time
	for requested := false; ; {
		_, _, next, _, changed := f.keys.ours()
		// A clock behind the last change is wrong: ignore it.
		if due := !now.IsZero() && f.cfg.Rotation.Every > 0 && now.Sub(changed) >= f.cfg.Rotation.Every; due || requested || !next.IsZero() {
			if err := f.rotate(ctx, now); err != nil && ctx.Err() == nil {
				f.log.Warn("the WireGuard key was not changed; it is tried again", "err", err)
			}
		}
		requested = false
		select {
		case <-ctx.Done():
			return
		case now = <-ticks:
		case <-f.rotateNow:
			now, requested = time.Now(), true
		}
	}
}

// Rotate changes the WireGuard key now. If ctx ends before all is done the rotation continues.
func (f *Fabric) Rotate(ctx context.Context) error {
	_, before, _, _, _ := f.keys.ours()
	changes.Poke(f.rotateNow)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, now, _, _, _ := f.keys.ours(); now != before {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the key is not changed yet: peers are being told; it goes on by itself, see the log")
		case <-tick.C:
		}
	}
}

func (f *Fabric) rotate(ctx context.Context, now time.Time) error {
	if f.cfg.Rotation.Save == nil {
		return fmt.Errorf("fabric: there is nowhere to keep another key")
	}
	private, _, next, nextPub, changed := f.keys.ours()
	if next.IsZero() {
		var err error
		if next, err = wgkey.Generate(); err != nil {
			return fmt.Errorf("fabric: make a WireGuard key: %w", err)
		}
		if err := f.cfg.Rotation.Save(private.Text(), next.Text(), changed); err != nil {
			return err
		}
		f.keys.set(private, next, changed)
		nextPub = next.Public()
	}
	f.Refresh()
	f.awaitTaken(ctx, nextPub)
	if ctx.Err() != nil {
		return ctx.Err() // it continues after the next start
	}
	if now.IsZero() {
		now = time.Now()
	}
	if err := f.cfg.Rotation.Save(next.Text(), "", now); err != nil {
		return err
	}
	f.keys.set(next, wgkey.Private{}, now)
	f.log.Info("WireGuard key changed", "public", nextPub)
	f.plane.kick()
	f.Refresh()
	return nil
}

// awaitTaken waits, within bounds, until every connected peer has the next key.
func (f *Fabric) awaitTaken(ctx context.Context, nextPub wgkey.Public) {
	ctx, cancel := context.WithTimeout(ctx, rotationPatience)
	defer cancel()
	changed, stop := f.Changed()
	defer stop()
	for {
		f.mu.Lock()
		waits := 0
		for _, m := range f.members {
			if m.Pinned() && m.State() == peer.Connected && m.KeyTaken() != nextPub {
				waits++
			}
		}
		f.mu.Unlock()
		if waits == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(f.cfg.Timing.Probe):
		}
	}
}
