// Package external makes a target of one namespace of a foreign cluster, a campus's or
// a cloud's, that runs no Rivulet: all it takes is a kubeconfig with the rights of an
// ordinary user there. What the engine sees of it is seen through package lens. See
// docs/design/burst.md.
//
// It reads, in that namespace, its own objects, quotas, limit ranges and events, and
// the nodes where that is allowed. It alone writes what is labelled
// lens.HomeLabel=<home's cluster ID> there, and never touches anything else.
//
// Restart: nothing is remembered; what runs there is found again by its labels.
// Failure as the user sees it: a virtual node that is NotReady with the reason
// (unreachable, credential refused, namespace gone), pods that stay Pending with the
// campus's words (quota, Pod Security), and the errors of Examine, which end in a cure.
package external
