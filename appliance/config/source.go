package config

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"rivulet/appliance/state/durable"
)

// Source is the source of a device's configuration.
type Source struct {
	// Path is the file. Named: the user gave the path, so the file has to exist.
	Path  string
	Named bool
	// Keep is where the last file without a mistake is stored; empty is nowhere.
	Keep string
	// Env has overrides by environment variables (Environment), Over stronger ones, the strongest last. The creator of
	// Over has checked its values.
	Env  map[string]string
	Over []Override
	Host Host
	// Cluster has the settings of the cluster that this device has become the server of (Loaded.Cluster); the file's are
	// stronger.
	Cluster string
}

// Override is one value from the environment or a flag.
type Override struct {
	Key, Value string
	Origin     Origin
}

// From is which text is in force.
type From string

// The texts that can be in force.
const (
	FromFile     From = "file"
	FromLastGood From = "last good"
	FromDefaults From = "defaults"
)

// Loaded is a configuration in force.
type Loaded struct {
	Config  Config
	Origins map[string]Origin
	// File is the path that was read.
	File string
	From From
	At   time.Time
	// Problems are why the file is not in force, Warnings less serious findings.
	Problems, Warnings Problems
	// Closed is set if the file is unusable and there is no good one: its trust settings are unknown, so no new peer is
	// trusted.
	Closed bool
	// Unsaved is why the file could not be stored as the last good one.
	Unsaved error
	sum     [sha256.Size]byte // of the content
}

// Load reads everything again. It always returns a usable configuration.
func (s Source) Load(now time.Time) Loaded {
	l := Loaded{File: s.Path, From: FromDefaults, At: now}
	data, mode, err := read(s.Path)
	var problem *Problem
	switch {
	case errors.Is(err, fs.ErrNotExist) && !s.Named:
		p := Parse(nil, Options{File: s.Path, Host: s.Host, Files: true, Env: s.Env})
		if len(p.Problems) > 0 {
			l.Problems, l.Closed = p.Problems, true
			return s.over(l, Parsed{})
		}
		l.Warnings, l.Unsaved = p.Warnings, s.keep(nil)
		return s.over(l, p)
	case errors.Is(err, fs.ErrNotExist):
		l.Problems = Problems{{File: s.Path, Text: "there is no such file", Cure: "create it, from: rivulet config example; or leave out --config and RIVULET_CONFIG"}}
	case errors.As(err, &problem):
		l.Problems = Problems{*problem}
	case err != nil:
		l.Problems = Problems{{File: s.Path, Text: plain(err.Error()), Cure: "look at the disk"}}
	}
	l.sum = sha256.Sum256(data)
	if len(l.Problems) == 0 {
		p := Parse(data, Options{File: s.Path, Mode: mode, Host: s.Host, Files: true, Env: s.Env})
		if len(p.Problems) == 0 {
			l.From, l.Warnings = FromFile, p.Warnings
			l.Unsaved = s.keep(data)
			return s.over(l, p)
		}
		l.Problems = p.Problems
	}
	if good, err := os.ReadFile(s.Keep); s.Keep != "" && err == nil {
		// The files that it names may be missing by now: then their functions do not work, but the rest does.
		if p := Parse(good, Options{File: s.Keep, Host: s.Host, Env: s.Env}); len(p.Problems) == 0 {
			l.From = FromLastGood
			return s.over(l, p)
		}
	}
	l.Closed = true
	return s.over(l, Parsed{})
}

// keep stores the text as the last good one; nil deletes that: without a file the user wants the defaults.
func (s Source) keep(data []byte) error {
	if s.Keep == "" {
		return nil
	}
	if data == nil {
		if err := os.Remove(s.Keep); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.Keep), 0o700); err != nil {
		return err
	}
	return durable.Write(s.Keep, data, 0o600)
}

// over applies environment and flags to a text's values.
func (s Source) over(l Loaded, p Parsed) Loaded {
	l.Config, l.Origins = p.Config, map[string]Origin{}
	maps.Copy(l.Origins, p.Origins)
	l.fill(s.Cluster)
	for _, o := range s.Over {
		*Table[slices.Index(Keys, o.Key)].to(&l.Config).(*string) = o.Value
		l.Origins[o.Key] = o.Origin
	}
	return l
}
