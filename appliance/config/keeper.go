package config

import (
	"reflect"
	"sync"
	"time"
)

// Current has the configuration in force. Its methods may be called concurrently.
type Current struct {
	src Source

	loading sync.Mutex // one Reload at a time
	mu      sync.Mutex
	now     Loaded
}

// Open loads the configuration for the first time.
func Open(src Source) *Current {
	return &Current{src: src, now: src.Load(time.Now())}
}

// Path is the path of the file.
func (k *Current) Path() string { return k.src.Path }

// Now returns what is in force.
func (k *Current) Now() Loaded {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// Reload reads everything again, and returns the earlier and the present configuration. A file with a mistake changes
// only Problems.
func (k *Current) Reload() (was, is Loaded) {
	k.loading.Lock()
	defer k.loading.Unlock()
	was = k.Now()
	is = k.src.Load(time.Now())
	if len(is.Problems) > 0 && was.From != FromDefaults {
		// The configuration in force stays, even if the stored one is older or missing.
		is.Config, is.Origins, is.From, is.At, is.Closed = was.Config, was.Origins, FromLastGood, was.At, was.Closed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now = is
	return was, is
}

// Same reports whether a reload found no change.
func Same(a, b Loaded) bool {
	return a.sum == b.sum && a.From == b.From && a.Closed == b.Closed && reflect.DeepEqual(a.Config, b.Config) &&
		len(a.Problems) == len(b.Problems) && a.Problems.Error() == b.Problems.Error()
}
