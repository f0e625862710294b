// Package rewrite shows one namespace that is shared with others as one namespace for each of home's, under home's
// names (docs/design/burst.md): an http.RoundTripper in front of a foreign cluster's API. It translates names,
// namespaces, label keys, selectors and references inside objects; what was translated is kept in annotations. Lists
// and watches are narrowed to our own labels. What has our labels without the name that goes with them is another's
// copy and is not shown. It reads and writes only what is asked of it, and nothing that it did not make: before a write
// by name the owner is checked. It remembers nothing. What cannot be translated, and what leaves the namespace, is
// refused with a Kubernetes Status that gives the reason.
package rewrite
