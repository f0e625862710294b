// Package external makes a target of one namespace of a foreign cluster without Rivulet, by a kubeconfig with the
// rights of an ordinary user there (docs/design/burst.md); the engine uses it through package rewrite. It reads, in
// that namespace, its own objects, quotas, limit ranges and events, and the nodes where that is allowed. It alone
// writes the objects labelled rewrite.HomeLabel=<home's cluster ID> there, and never touches others. Restart: its
// objects are found by their labels. Failure: a virtual node that is NotReady, pods that stay Pending with the campus's
// message, and the errors of Examine, each with a cure.
package external
