// Package rewrite shows one namespace that we share with others as if it were many of
// our own: one for each namespace of home, under the same name, with the names of
// home in it. It is an http.RoundTripper in front of a foreign cluster's API, so
// that the engine of offloading needs not know of it.
//
//	engine sees   /api/v1/namespaces/lab/configmaps/settings
//	campus has    /api/v1/namespaces/student42/configmaps/settings-rkq7x2mabcdefgh
//
// Translated are names, namespaces, keys of labels, selectors, and the names inside
// objects that refer to others; what was translated is kept in annotations. Lists
// and watches are narrowed to our own labels by the campus itself. Pods keep the
// names that the campus gives them. What has our labels but not the name that goes
// with them is somebody else's copy; it is not shown.
//
// It reads and writes only what is asked of it, and nothing that it did not make:
// a write by name alone is preceded by a look at whose the object is. It remembers
// nothing. What cannot be translated, and every request that leaves the namespace,
// is refused with a Kubernetes Status that says why.
package rewrite
