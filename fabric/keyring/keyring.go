// Package keyring has this cluster's WireGuard keys, changes them from time to time, and decides who owns a key that
// several clusters claim. The identity key never changes.
//
//	make and store the next key ─▶ send to all peers ─▶ store as present, change the tunnel ─▶ send again
//
// A peer changes to the new key when it receives it, or, if it could not, when the old one ceases to answer. Open
// connections wait for about a second.
//
// It reads the stored keys and, through functions, what peers have received. It alone writes the keys, with
// Rotation.Save. After a restart or a power cut an unfinished rotation continues. A key that cannot be stored is logged
// and tried again at the next check.
package keyring

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/wgkey"
)

// Rotation says when the key changes, and where keys are stored.
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

// Patience bounds the wait for connected peers without the next key; lost peers receive it when they return.
const Patience = 5 * time.Minute

// Keys are the keys at one moment. The next ones are zero if there is none.
type Keys struct {
	Private, Next      wgkey.Private
	Public, NextPublic wgkey.Public
	// Changed is when the present key was made.
	Changed time.Time
}

// Both are the public keys.
func (k Keys) Both() []wgkey.Public { return []wgkey.Public{k.Public, k.NextPublic} }

// Ring has the keys. Its methods may be called concurrently; its lock is a leaf.
type Ring struct {
	rotation Rotation
	due      chan struct{} // poked to change the key

	mu   sync.Mutex
	keys Keys
}

// Open returns the ring with the stored keys.
func Open(private string, r Rotation) (*Ring, error) {
	present, err := wgkey.ParsePrivate(private)
	var next wgkey.Private
	if err == nil && r.Next != "" {
		next, err = wgkey.ParsePrivate(r.Next)
	}
	if err != nil {
		return nil, fmt.Errorf("keyring: %w: restore state.db from a backup or move it away", err)
	}
	ring := &Ring{rotation: r, due: make(chan struct{}, 1)}
	ring.set(present, next, r.Changed)
	return ring, nil
}

func (r *Ring) set(private, next wgkey.Private, changed time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = Keys{Private: private, Next: next, Public: private.Public(), NextPublic: next.Public(), Changed: changed}
}

// Now returns the keys.
func (r *Ring) Now() Keys {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys
}

// Private returns the private keys; next is zero if there is none.
func (r *Ring) Private() (present, next wgkey.Private) {
	k := r.Now()
	return k.Private, k.Next
}

// Peers are the other clusters, as a rotation needs them.
type Peers struct {
	// Changed configures the tunnel with the keys, and sends them to all peers. It does not wait.
	Changed func()
	// Await waits until every connected peer has received the next key, or ctx ends.
	Await func(ctx context.Context, next wgkey.Public)
}

// Run changes the key when it is due, until ctx ends.
func (r *Ring) Run(ctx context.Context, peers Peers, log *slog.Logger) {
	ticks := r.rotation.Ticks
	if ticks == nil {
		t := time.NewTicker(time.Hour)
		defer t.Stop()
		ticks = t.C
	}
	var now time.Time
	for requested := false; ; {
		k := r.Now()
		// A clock behind the last change is wrong: ignore it.
		if due := !now.IsZero() && r.rotation.Every > 0 && now.Sub(k.Changed) >= r.rotation.Every; due || requested || !k.Next.IsZero() {
			if err := r.rotate(ctx, now, peers, log); err != nil && ctx.Err() == nil {
				log.Warn("the WireGuard key was not changed; it is tried again", "err", err)
			}
		}
		requested = false
		select {
		case <-ctx.Done():
			return
		case now = <-ticks:
		case <-r.due:
			now, requested = time.Now(), true
		}
	}
}

// Rotate changes the key now. If ctx ends before all is done the rotation continues.
func (r *Ring) Rotate(ctx context.Context) error {
	before := r.Now().Public
	changes.Poke(r.due)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if r.Now().Public != before {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the key is not changed yet: peers are being told; it goes on by itself, see the log")
		case <-tick.C:
		}
	}
}

func (r *Ring) rotate(ctx context.Context, now time.Time, peers Peers, log *slog.Logger) error {
	if r.rotation.Save == nil {
		return fmt.Errorf("keyring: there is nowhere to keep another key")
	}
	k := r.Now()
	if k.Next.IsZero() {
		next, err := wgkey.Generate()
		if err != nil {
			return fmt.Errorf("keyring: make a WireGuard key: %w", err)
		}
		if err := r.rotation.Save(k.Private.Text(), next.Text(), k.Changed); err != nil {
			return err
		}
		r.set(k.Private, next, k.Changed)
		k = r.Now()
	}
	peers.Changed()
	patient, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	peers.Await(patient, k.NextPublic)
	if ctx.Err() != nil {
		return ctx.Err() // it continues after the next start
	}
	if now.IsZero() {
		now = time.Now()
	}
	if err := r.rotation.Save(k.Next.Text(), "", now); err != nil {
		return err
	}
	r.set(k.Next, wgkey.Private{}, now)
	log.Info("WireGuard key changed", "public", k.NextPublic)
	peers.Changed()
	return nil
}
