"""One file per page. Streamlit runs a page as a script; each ends by handing its function to ``dashboard.shell``."""
