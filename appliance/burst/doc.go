// Package burst keeps the list of foreign clusters that pods may be sent to: those
// that a person has added, with their credentials, and those of the configuration
// file. What such a target does is in offload/target/external.
//
// It reads the kubeconfigs that the configuration names, again from time to time, and
// asks the targets what the user may do there. It alone writes the note "burst" of
// the store, with the credentials sealed by a key that is made of the device's own
// identity: who has the note without the identity cannot use them; who has all of
// state.db, or is root here, can.
//
// Restart: the list is read again; a removal that was not finished, because the
// target did not answer, goes on. Failure as the user sees it: the problems
// burst-unusable, burst-credential and burst-left, the Ready condition of the virtual
// node, and the errors of Add and Remove, which end in a cure.
package burst
