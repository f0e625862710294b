package rewrite

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// space translates the objects of one home namespace.
type space struct {
	names  Names
	home   string // the namespace at home
	shared string // the shared namespace
}

func (s space) name(home string) string { return s.names.Away(s.home, home) }

// again is name for objects that were read from the shared namespace and changed: their references are translated
// already.
func (s space) again(name string) string {
	if s.names.translated(s.home, name) {
		return name
	}
	return s.name(name)
}

// away translates an object for a write. fresh is true for one that was never in the shared namespace.
func (s space) away(resource string, o tree, fresh bool) {
	name := s.again
	if fresh {
		name = s.name
	}
	meta := need(o, "metadata")
	home := text(meta, "name")
	if resource != pods && home != "" {
		meta["name"] = s.name(home)
	}
	meta["namespace"] = s.shared
	s.mark(meta)
	if resource != pods {
		need(meta, "annotations")[NameAnnotation] = home
	}
	each(meta, "ownerReferences", func(ref tree) {
		if kind := text(ref, "kind"); kind == "ReplicaSet" || kind == "Job" {
			rename(ref, "name", name)
		}
	})
	if wraps(resource) {
		spec := need(o, "spec")
		s.narrow(need(spec, "selector"))
		template := need(spec, "template", "metadata")
		s.mark(template)
		podSpec(need(spec, "template", "spec"), name)
	}
}

// mark translates labels and adds the owner.
func (s space) mark(meta tree) {
	labels, _ := meta["labels"].(tree)
	kept := tree{}
	for key, value := range labels {
		kept[AwayKey(key)] = value
	}
	kept[HomeLabel], kept[SpaceLabel] = s.names.Cluster, s.names.Space(s.home)
	meta["labels"] = kept
	notes := need(meta, "annotations")
	notes[NamespaceAnnotation] = s.home
	notes[labelsAnnotation] = asFile(labels)
}

// asFile is the downward API's format of labels: a line for each, sorted.
func asFile(labels tree) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if value, ok := labels[key].(string); ok && key != HomeLabel && key != SpaceLabel {
			lines = append(lines, key+"="+strconv.Quote(value))
		}
	}
	return strings.Join(lines, "\n")
}

// narrow translates a selector and restricts it to this cluster's objects.
func (s space) narrow(selector tree) {
	match := tree{}
	if had, ok := selector["matchLabels"].(tree); ok {
		for key, value := range had {
			match[AwayKey(key)] = value
		}
	}
	match[SpaceLabel] = s.names.Space(s.home)
	selector["matchLabels"] = match
	each(selector, "matchExpressions", func(e tree) {
		if key := text(e, "key"); key != "" {
			e["key"] = AwayKey(key)
		}
	})
}

func (s space) widen(selector tree) {
	if match, ok := selector["matchLabels"].(tree); ok {
		back := tree{}
		for key, value := range match {
			if key == SpaceLabel {
				continue
			}
			home, _ := HomeKey(key)
			back[home] = value
		}
		selector["matchLabels"] = back
	}
	each(selector, "matchExpressions", func(e tree) {
		if key := text(e, "key"); key != "" {
			e["key"], _ = HomeKey(key)
		}
	})
}

// wraps reports whether objects of the resource make pods.
func wraps(resource string) bool { return resource == "replicasets" || resource == "jobs" }

// mine reports whether this space made the object, or, for pods, its controllers.
func (s space) mine(resource string, o tree) bool {
	meta := at(o, "metadata")
	labels, notes := at(meta, "labels"), at(meta, "annotations")
	if text(labels, HomeLabel) != s.names.Cluster || text(labels, SpaceLabel) != s.names.Space(s.home) || text(notes, NamespaceAnnotation) != s.home {
		return false
	}
	if resource == pods {
		return s.names.Belongs(s.home, text(meta, "name"))
	}
	return text(meta, "name") == s.name(text(notes, NameAnnotation))
}

// measured translates the usage of a pod, if it is mine. The campus has selected by this cluster's labels; a metrics
// server copies labels of pods, an old one not even these, and no annotations.
func (s space) measured(o tree) bool {
	meta := at(o, "metadata")
	labels := at(meta, "labels")
	if labels != nil && (text(labels, HomeLabel) != s.names.Cluster || text(labels, SpaceLabel) != s.names.Space(s.home)) ||
		!s.names.Belongs(s.home, text(meta, "name")) {
		return false
	}
	meta["namespace"] = s.home
	s.unmark(meta)
	return true
}

// back translates a read object that is mine.
func (s space) back(resource string, o tree) {
	meta := at(o, "metadata")
	notes := at(meta, "annotations")
	if resource != pods {
		meta["name"] = text(notes, NameAnnotation)
	}
	meta["namespace"] = s.home
	if wraps(resource) {
		s.widen(need(o, "spec", "selector"))
		s.unmark(need(o, "spec", "template", "metadata"))
	}
	s.unmark(meta)
}

// unmark reverses mark. Of two labels with the same key, this cluster's and one that was added by others, the former
// counts.
func (s space) unmark(meta tree) {
	if labels, ok := meta["labels"].(tree); ok {
		back := tree{}
		for key, value := range labels {
			home, translated := HomeKey(key)
			if key == HomeLabel || key == SpaceLabel {
				continue
			}
			if _, taken := back[home]; taken && !translated {
				continue
			}
			back[home] = value
		}
		meta["labels"] = back
	}
	if notes, ok := meta["annotations"].(tree); ok {
		for _, key := range []string{NamespaceAnnotation, NameAnnotation, labelsAnnotation} {
			delete(notes, key)
		}
		if len(notes) == 0 {
			delete(meta, "annotations")
		}
	}
}

// event translates an event of the shared namespace, and reports whether it is about an object of this space. Pods keep
// their names.
func (s space) event(o tree) bool {
	about := at(o, "involvedObject")
	name := text(about, "name")
	wrapper, ok := s.names.wrapperOf(s.home, name)
	if !ok {
		return false
	}
	meta := need(o, "metadata")
	meta["namespace"], about["namespace"] = s.home, s.home
	message := strings.ReplaceAll(text(o, "message"), s.shared+"/", s.home+"/")
	if kind := text(about, "kind"); kind == "ReplicaSet" || kind == "Job" {
		if home, ok := s.names.Home(s.home, wrapper); ok && name == wrapper {
			about["name"] = home
			message = strings.ReplaceAll(message, wrapper, home)
		}
	}
	o["message"] = message
	return true
}

// patch translates a merge patch of a pod.
func (s space) patch(o tree) error {
	for key := range o {
		if key != "metadata" && key != "spec" {
			return fmt.Errorf("a patch of %s is not translated", key)
		}
	}
	if labels := at(o, "metadata", "labels"); labels != nil {
		moved := tree{}
		for key, value := range labels {
			moved[AwayKey(key)] = value
		}
		o["metadata"].(tree)["labels"] = moved
	}
	each(at(o, "spec"), "ephemeralContainers", func(c tree) { container(c, s.name) })
	return nil
}
