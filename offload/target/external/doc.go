// Package external makes a target of one namespace of a foreign cluster that runs no Rivulet, by a kubeconfig with the
// rights of an ordinary user there (docs/design/burst.md); the engine sees it through package rewrite. It reads, in
// that namespace, its own objects, quotas, limit ranges and events, and the nodes where that is allowed. It alone
// writes what is labelled rewrite.HomeLabel=<home's cluster ID> there, and never touches anything else. Restart: what
// runs there is found again by its labels. Failure: a virtual node that is NotReady, pods that stay Pending with the
// campus's words, and the errors of Examine, which end in a cure.
package external
