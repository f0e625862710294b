// Package burst manages the list of foreign clusters to which pods may be sent: those that an operator has added, with
// their credentials, and those of the configuration file. Package offload/target/external implements such a target.
//
// It reads the configured kubeconfigs, periodically, and queries the targets for the user's rights. It alone writes the
// note "burst" of the store, with credentials encrypted by a key derived from the device's identity: the note without
// the identity is of no use; all of state.db, or root here, gives access.
//
// Restart: the list is read again; an unfinished removal, whose target did not answer, continues. Failure as the user
// sees it: the problems burst-unusable, burst-credential and burst-left, the Ready condition of the virtual node, and
// the errors of Add and Remove, which end in a cure.
package burst
