// Package rewrite presents one shared namespace as one namespace for each of home's, under home's names
// (docs/design/burst.md): an http.RoundTripper in front of a foreign cluster's API. It translates names, namespaces,
// label keys, selectors and references inside objects; the originals are in annotations. Lists and watches are
// restricted to this cluster's labels. An object with these labels and without the matching name is another's copy and
// is hidden. It reads and writes only what is requested, and no object of others: before a write by name the owner is
// checked. It has no state. What cannot be translated, and what leaves the namespace, is refused with a Kubernetes
// Status that has the reason.
package rewrite
