"""The paper's propositions and their extensions against simulation, through real nodes."""
