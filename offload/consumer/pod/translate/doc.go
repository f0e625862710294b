// Package translate translates between a pod of home and what runs for it on a target: Wrap makes of the pod the object
// that is created in the twin, and Status makes of the target's state the status of the pod. Everything is pure: it has
// no clients and no state, and its results are the same for the same arguments, except times of transitions. Failure: a
// pod with a field that has no meaning on another cluster is a *Refusal, which names all such fields.
package translate
