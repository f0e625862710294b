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

// Source is where a device's configuration comes from.
type Source struct {
	// Path is the file. Named says that the user gave the path, so that it has to be there.
	Path  string
	Named bool
	// Keep is where the last file without a mistake is kept; empty keeps none.
	Keep string
	// Env is what environment variables say over the file (Environment), Over what comes over both, the
	// strongest last. Who makes Over has checked its values.
	Env  map[string]string
	Over []Override
	Host Host
}

// Override is one value out of the environment or a flag.
type Override struct {
	Key, Value string
	Origin     Origin
}

// From says which text is in force.
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
	// File is the path that was looked at.
	File string
	From From
	At   time.Time
	// Problems say why the file is not in force, Warnings what is odd about it.
	Problems, Warnings Problems
	// Closed is set where the file cannot be used and none was good before: it may
	// have said whom to trust, so nobody new is.
	Closed bool
	// Unsaved says why the file could not be kept as the last good one.
	Unsaved error
	sum     [sha256.Size]byte // of what was read
}

// Load reads everything anew. It always returns something that can be used.
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
		l.Problems = Problems{{File: s.Path, Text: "there is no such file", Cure: "create it (rivulet config example shows one), or leave out --config and RIVULET_CONFIG"}}
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
		// The files that it names may be gone since: what they were for then does not
		// work, which is no reason to drop the rest.
		if p := Parse(good, Options{File: s.Keep, Host: s.Host, Env: s.Env}); len(p.Problems) == 0 {
			l.From = FromLastGood
			return s.over(l, p)
		}
	}
	l.Closed = true
	return s.over(l, Parsed{})
}

// keep remembers the text as the last good one; nil forgets it: without a file the
// defaults are what the user wants.
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

// over puts environment and flags over what a text says.
func (s Source) over(l Loaded, p Parsed) Loaded {
	l.Config, l.Origins = p.Config, map[string]Origin{}
	maps.Copy(l.Origins, p.Origins)
	for _, o := range s.Over {
		*Table[slices.Index(Keys, o.Key)].to(&l.Config).(*string) = o.Value
		l.Origins[o.Key] = o.Origin
	}
	return l
}
