package rewrite

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// Labels and annotations that identify this cluster's objects in a shared namespace.
const (
	// HomeLabel is on each of home's objects there; its value is the home cluster's ID.
	HomeLabel = "rivulet.dev/burst-home"
	// SpaceLabel distinguishes the home namespaces; its value is Names.Space.
	SpaceLabel = "rivulet.dev/burst-space"
	// NamespaceAnnotation and NameAnnotation are the object's names at home.
	NamespaceAnnotation = "rivulet.dev/burst-namespace"
	NameAnnotation      = "rivulet.dev/burst-name"
	// labelsAnnotation are the pod's labels at home, in the format of the downward API.
	labelsAnnotation = "rivulet.dev/burst-labels"
)

// MaxName is the longest translated name, in characters: controllers cut the names of their pods after 58, which
// include a dash, and the part that identifies the owner is at the end.
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

// Space is the constant mark of the home namespace.
func (n Names) Space(namespace string) string { return digest("space", n.Cluster, namespace) }

// Away returns the name of the object in the shared namespace. It is a DNS label that begins with a letter, at most
// MaxName long:
//
//	web.v2  ->  web-v2-rabcdefghijklmn
//	            stem     │└ 6 of the space, 8 of cluster, namespace and name
//
// If the stem is the whole name, Home can reverse it; the annotations always have the original.
func (n Names) Away(namespace, name string) string {
	return stem(name) + "-r" + n.Space(namespace)[:spaceTag] + digest("name", n.Cluster, namespace, name)[:nameTag]
}

// Home returns the original of an away name, if the name alone is sufficient.
func (n Names) Home(namespace, away string) (string, bool) {
	if len(away) <= tail {
		return "", false
	}
	name := away[:len(away)-tail]
	return name, n.Away(namespace, name) == away
}

// Belongs reports whether a translated name, or a controller's extension of it by "-xxxxx", is of that namespace of
// this cluster.
func (n Names) Belongs(namespace, away string) bool {
	_, ok := n.wrapperOf(namespace, away)
	return ok
}

// wrapperOf returns the translated name without a controller's extension.
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

// ours is the prefix of Rivulet's own label keys, which are not translated.
const ours = "rivulet.dev/"

// awayDomain is the end of the prefix of translated label keys.
const awayDomain = "away.rivulet.dev"

// AwayKey translates a label's key, so that no other selector in the namespace matches this cluster's objects:
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

// HomeKey reverses AwayKey; ok is false for a key that AwayKey did not make.
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
