package rewrite

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// Labels and annotations by which our objects are known in a namespace that others
// use, too.
const (
	// HomeLabel is on everything of ours; its value is the home cluster's ID.
	HomeLabel = "rivulet.dev/burst-home"
	// SpaceLabel tells the home namespaces apart; its value is Names.Space.
	SpaceLabel = "rivulet.dev/burst-space"
	// NamespaceAnnotation and NameAnnotation are what the object is called at home.
	NamespaceAnnotation = "rivulet.dev/burst-namespace"
	NameAnnotation      = "rivulet.dev/burst-name"
	// labelsAnnotation is the pod's labels at home, as the downward API writes them.
	labelsAnnotation = "rivulet.dev/burst-labels"
)

// MaxName is the longest translated name, in characters: controllers cut the
// names of the pods they make after 58, one of which is their dash, and what tells
// whose a pod is stands at the end.
const MaxName = 57

const (
	spaceTag = 6 // of Space
	nameTag  = 8 // of the hash of the name: 40 bits, beside the name's own beginning
	tail     = len("-r") + spaceTag + nameTag
)

var code = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00"))) // no name contains a NUL
	return code.EncodeToString(sum[:16])
}

// Names translates names of one home cluster.
type Names struct {
	Cluster string // its ID
}

// Space is what the home namespace is marked with, the same for ever.
func (n Names) Space(namespace string) string { return digest("space", n.Cluster, namespace) }

// Away returns the name that the object has in the shared namespace. It is a DNS
// label that begins with a letter, MaxName long at most:
//
//	web.v2  ->  web-v2-rabcdefghijklmn
//	            stem     │└ 6 of the space, 8 of cluster, namespace and name
//
// Where the stem is the whole name, Home finds the way back by itself; the
// annotations always have it.
func (n Names) Away(namespace, name string) string {
	return stem(name) + "-r" + n.Space(namespace)[:spaceTag] + digest("name", n.Cluster, namespace, name)[:nameTag]
}

// Home returns what Away made of, if that can be told from the name alone.
func (n Names) Home(namespace, away string) (string, bool) {
	if len(away) <= tail {
		return "", false
	}
	name := away[:len(away)-tail]
	return name, n.Away(namespace, name) == away
}

// Belongs reports whether a translated name, or one that a controller made of it by
// adding "-xxxxx", is of that namespace of this cluster.
func (n Names) Belongs(namespace, away string) bool {
	_, ok := n.wrapperOf(namespace, away)
	return ok
}

// wrapperOf returns the translated name in front of what a controller has added.
func (n Names) wrapperOf(namespace, away string) (string, bool) {
	if n.translated(namespace, away) {
		return away, true
	}
	if cut := strings.LastIndexByte(away, '-'); cut > 0 && n.translated(namespace, away[:cut]) {
		return away[:cut], true
	}
	return "", false
}

func (n Names) translated(namespace, away string) bool {
	return len(away) > tail && strings.HasPrefix(away[len(away)-tail:], "-r"+n.Space(namespace)[:spaceTag])
}

// stem is the beginning of a name, as a DNS label that begins with a letter.
func stem(name string) string {
	mapped := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, name)
	mapped = strings.Trim(mapped, "-")
	if mapped == "" || mapped[0] >= '0' && mapped[0] <= '9' {
		mapped = "n" + mapped
	}
	if most := MaxName - tail; len(mapped) > most {
		mapped = strings.TrimRight(mapped[:most], "-")
	}
	return mapped
}

// ours is what the keys of Rivulet's own labels begin with: these are not
// translated.
const ours = "rivulet.dev/"

// awayDomain ends the prefix of translated label keys.
const awayDomain = "away.rivulet.dev"

// AwayKey translates a label's key, so that no selector of anybody else in the
// namespace catches what we put there:
//
//	app                     ->  away.rivulet.dev/app
//	app.kubernetes.io/name  ->  app.kubernetes.io.away.rivulet.dev/name
func AwayKey(key string) string {
	prefix, name, ok := strings.Cut(key, "/")
	switch {
	case strings.HasPrefix(key, ours):
		return key
	case !ok:
		return awayDomain + "/" + key
	}
	return prefix + "." + awayDomain + "/" + name
}

// HomeKey is the way back; ok is false for a key that AwayKey did not make.
func HomeKey(key string) (home string, ok bool) {
	prefix, name, cut := strings.Cut(key, "/")
	if !cut {
		return key, false
	}
	if prefix == awayDomain {
		return name, true
	}
	if home, ok = strings.CutSuffix(prefix, "."+awayDomain); ok {
		return home + "/" + name, true
	}
	return key, false
}
